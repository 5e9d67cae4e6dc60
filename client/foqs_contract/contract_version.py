"""The version of the contract, and the request fields that each version added.

A host names its version in the reply of `authenticate`. A caller does not send it a field or
a method that is newer. Always true: `ADDED_FIELDS` and the rows of `call_table` name every field
of a request and every method that is not in the contract recorded for version 1; a test compares
them. Fields of replies need no entry, because a caller ignores those that it does not know. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from thrift.Thrift import TType

from foqs_contract.call_table import FIRST_VERSION, CallRow
from foqs_contract.errors import NotImplementedYet
from foqs_contract.idl import ttypes
from foqs_contract.request import Request

CONTRACT_VERSION: Final = 2

ADDED_FIELDS: Final[Mapping[type, Mapping[str, int]]] = {
    ttypes.EnqueueRequest: {"atomic": 2},
    ttypes.DequeueRequest: {"run_max": 2},
    ttypes.NewItem: {"group": 2, "trace_context": 2, "key_until_ms": 2},
    ttypes.BulkRequest: {"count_only": 2, "move_to": 2},
    ttypes.ItemFilter: {"group": 2, "topics": 2},
    ttypes.NamespaceSettings: {"incarnation": 2, "keys_until_ms": 2},  # a host ignores it
}
"""By struct and field: the first version with the field."""


class HostTooOld(NotImplementedYet):
    """The host serves an older version of the contract, which lacks the call or the field. Nothing was sent.

    Attributes:
        served_version: the version that the host serves.
    """

    served_version: int = FIRST_VERSION


class NewerPart(NamedTuple):
    """A part of a call that not every version knows.

    Attributes:
        version: the first version with it.
        field: the path of the field in the request; None if the method itself is newer.
    """

    version: int
    field: str | None


def newer_parts(row: CallRow, request_spec: Sequence[Any]) -> NewerParts | None:
    """Return the object that finds the newest part of a call's requests; None if every version knows all of them.

    Args:
        request_spec: [class, fields] of its request.
    """
    parts = NewerParts(row, request_spec)
    return None if parts.is_empty else parts


class NewerParts:
    """Finds the newest part of a call's requests. Arguments are those of `newer_parts`."""

    __slots__ = ("_fields", "_lists", "_method", "_structs")

    def __init__(self, row: CallRow, request_spec: Sequence[Any]) -> None:
        self._method = NewerPart(row.since, None)
        self._fields = ADDED_FIELDS.get(request_spec[0], {})
        fields = list(filter(None, request_spec[1]))
        self._structs = [
            (field[2], ADDED_FIELDS[field[3][0]])
            for field in fields
            if field[1] == TType.STRUCT and field[3][0] in ADDED_FIELDS
        ]
        self._lists = [
            (field[2], ADDED_FIELDS[field[3][1][0]])
            for field in fields
            if field[1] == TType.LIST and field[3][0] == TType.STRUCT and field[3][1][0] in ADDED_FIELDS
        ]

    @property
    def is_empty(self) -> bool:
        """Whether every version knows the method and all fields of its requests."""
        return self._method.version == FIRST_VERSION and not (self._fields or self._structs or self._lists)

    def newest(self, request: Request) -> NewerPart | None:
        """Return the newest part of a request, or the method; None if every version knows all of it."""
        newest = _newest_field(request, self._fields, "", self._method)
        for name, fields in self._structs:
            struct = getattr(request, name)
            if struct is not None:
                newest = _newest_field(struct, fields, f"{name}.", newest)
        for name, fields in self._lists:
            for place, entry in enumerate(getattr(request, name) or ()):
                newest = _newest_field(entry, fields, f"{name}[{place}].", newest)
        return None if newest.version == FIRST_VERSION else newest

    def unserved_entries(self, request: Request, served: int, host: str = "the host") -> dict[int, HostTooOld]:
        """Return the errors of the entries that a host of version `served` does not know, by their places in the list.

        There are none if it does not know the method only.
        """
        errors: dict[int, HostTooOld] = {}
        for name, fields in self._lists:
            for place, entry in enumerate(getattr(request, name) or ()):
                newest = _newest_field(entry, fields, f"{name}[{place}].", NewerPart(FIRST_VERSION, None))
                if newest.version > served:
                    errors[place] = too_old(served, host, "", newest)
        return errors


def _newest_field(struct: Any, fields: Mapping[str, int], path: str, newest: NewerPart) -> NewerPart:
    for field, version in fields.items():
        if version > newest.version and getattr(struct, field) is not None:
            newest = NewerPart(version, path + field)
    return newest


def too_old(served: int, host: str, method: str, part: NewerPart) -> HostTooOld:
    """Return the error of a call with a part that a host of version `served` does not know."""
    what = f"the call {method}" if part.field is None else "this field"
    error = HostTooOld(
        f"{host} serves version {served} of the contract, and {what} is of version {part.version}; "
        f"upgrade the hosts first{'' if part.field is None else ', or leave it out'}",
        field=part.field,
    )
    error.served_version = served
    return error
