"""The methods of service Foqs: the row and the structs of each.

Holds `METHODS`, and the first bytes of arguments and results. Always true: every method
of the contract has an entry; its arguments are one struct, in field 1; its result is
`success` in field 0 or `failed` in field 1. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from thrift.Thrift import TType

from foqs_contract.call_table import CALLS, CallRow
from foqs_contract.idl import Foqs

ARGUMENTS_HEAD: Final = bytes((TType.STRUCT, 0, 1))
"""The first bytes of the arguments of each call. `STOP` ends them, and the result of each reply."""
SUCCESS_HEAD: Final = bytes((TType.STRUCT, 0, 0))
"""The first bytes of the result of a reply that is no error."""


@dataclass(slots=True, frozen=True)
class MethodDescription:
    """One method of the contract.

    Attributes:
        arguments, result: the generated classes of its two structs.
    """

    row: CallRow
    arguments: Any
    result: Any

    @property
    def request_spec(self) -> list[Any]:
        """[class, fields] of the request, the only argument."""
        spec: list[Any] = self.arguments.thrift_spec[1][3]
        return spec

    @property
    def reply_class(self) -> Any:
        """The class of the reply, the result of a call that succeeds."""
        return self.result.thrift_spec[0][3][0]


def described_methods(names: Collection[str], rows: Mapping[str, CallRow]) -> dict[str, MethodDescription]:
    """Return the methods of the service by name. Raises ValueError if one has no row, or a row no method."""
    for name in names:
        if name not in rows:
            raise ValueError(
                f"the call {name} has no row in foqs_contract/call_table.py; add one that says who may make it, "
                "whether it writes, and which hosts serve it"
            )
    for name in rows:
        if name not in names:
            raise ValueError(
                f"the row {name} in foqs_contract/call_table.py is of no call in thrift/foqs.thrift; remove it, or add the call"
            )
    return {
        name: MethodDescription(rows[name], getattr(Foqs, f"{name}_args"), getattr(Foqs, f"{name}_result"))
        for name in names
    }


METHODS: Final = described_methods([name for name in vars(Foqs.Iface) if not name.startswith("_")], CALLS)
"""Every method by its name."""
