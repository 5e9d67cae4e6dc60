"""Notes the changes that administrators make, and those that are refused to others.

The notes are entries of `foqs.access.audit_trail`. The row of a call says whether it is noted. The connections of Thrift and of the
console note it, and the SQS server. Always true: each change is noted once, at the host that was called,
when it ends or is denied; of the pages of one bulk change each host notes the first that it
gets. What a part of the host does for a change that is noted is not noted. Knows nothing of what
the calls do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, Final

from foqs.access.audit_trail import AuditRecord, AuditTrail, target_value
from foqs.access.call_permissions import Principal
from foqs.rpc.call import ServerMethod
from foqs_contract.call_table import Scope
from foqs_contract.errors import PermissionDenied
from foqs_contract.idl import ttypes
from foqs_contract.request import Request

LISTED_MAX: Final = 3
"""The most entries of a list that a target names."""
_HIDDEN: Final = frozenset(("payload", "metadata", "json", "token", "items", "trace_context"))
"""Fields of which only their presence is noted."""
_LEFT_OUT: Final = frozenset(("namespace_name", "timeout_ms", "page", "forwarded", "shards", "start_key"))
_ENUMS: Final[Mapping[str, Any]] = {
    "fair": ttypes.Fairness,
    "order": ttypes.DeliveryOrder,
    "action": ttypes.BulkAction,
    "command": ttypes.BulkJobCommand,
    "permissions": ttypes.Permission,
    "states": ttypes.ItemState,
}
"""The enums of fields, for their names: the decoder returns plain numbers."""


class Audit:
    """Writes the audit of a host.

    Args:
        now_ms: milliseconds since 1970-01-01 UTC.
    """

    def __init__(self, trail: AuditTrail, now_ms: Callable[[], int]) -> None:
        self._trail = trail
        self._now_ms = now_ms

    def note(
        self, call: str, principal: Principal | None, peer: str, namespace: str | None, target: str, outcome: str
    ) -> None:
        """Note a change that has ended, or was denied. Arguments are those of `AuditRecord`."""
        self._trail.record(self._entry(call, principal, peer, namespace, target, outcome))

    def note_call(
        self, method: ServerMethod, request: Request, principal: Principal | None, peer: str, outcome: str
    ) -> None:
        """Note a call of the contract, unless the host that forwarded it notes it."""
        if _is_noted_elsewhere(request, principal):
            return
        namespace = _namespace(method, request)
        entry = self._entry(
            method.row.name,
            principal,
            peer,
            None if namespace is None else _text(namespace),
            describe(request),
            outcome,
        )
        # A cursor proves nothing: its caller may have made it up. What is denied is always noted.
        is_denied = outcome == PermissionDenied.code
        if is_denied or not (_is_later_page(request) and self._is_filter_walk_noted(entry)):
            self._trail.record(entry)

    def _entry(
        self, call: str, principal: Principal | None, peer: str, namespace: str | None, target: str, outcome: str
    ) -> AuditRecord:
        return AuditRecord(
            at_ms=self._now_ms(),
            principal=None if principal is None else principal.name,
            peer=peer,
            call=call,
            namespace=namespace,
            target=target,
            outcome=outcome,
        )

    def _is_filter_walk_noted(self, page: AuditRecord) -> bool:
        """Return whether an earlier page of the same change is in the trail."""
        return any(_change_of(entry) == _change_of(page) for entry in self._trail.newest())


def _change_of(entry: AuditRecord) -> tuple[str | None, str, str | None, str, str]:
    return entry.principal, entry.call, entry.namespace, entry.target, entry.outcome


def _namespace(method: ServerMethod, request: Request) -> bytes | None:
    """Return the namespace that a request names; None if it names none."""
    if method.row.requirement.scope is Scope.NAMESPACE:
        return method.namespace_of(request)
    settings = getattr(request, "settings", None)
    name: bytes | None = getattr(request, "namespace_name", None) if settings is None else settings.name
    return name


def _is_noted_elsewhere(request: Request, principal: Principal | None) -> bool:
    """Return whether a host has forwarded the call. Hosts are administrators; the mark of any other principal is ignored."""
    return bool(getattr(request, "forwarded", None)) and (principal is None or principal.is_admin)


def _is_later_page(request: Request) -> bool:
    page = getattr(request, "page", None)
    return page is not None and page.cursor is not None


# ------------------------------------------------------------------ what it concerns


def describe(request: Request) -> str:
    """Return what a request concerns, as `name=value` pairs. Payloads, metadata and documents are not shown."""
    return " ".join(_pairs(request, ""))


def _pairs(struct: Any, prefix: str) -> list[str]:
    pairs: list[str] = []
    for field in filter(None, struct.thrift_spec):
        name = field[2]
        value = getattr(struct, name)
        if value is None or name in _LEFT_OUT:
            continue
        if hasattr(value, "thrift_spec"):
            pairs += _pairs(value, f"{prefix}{name}.")
        else:
            pairs.append(f"{prefix}{name}={_shown(name, value)}")
    return pairs


def _shown(name: str, value: Any) -> str:
    if name in _HIDDEN:
        return f"({len(value)})"
    if isinstance(value, Collection) and not isinstance(value, str | bytes):
        shown = ",".join(_named(name, entry) for entry in list(value)[:LISTED_MAX])
        return shown if len(value) <= LISTED_MAX else f"{shown} and {len(value) - LISTED_MAX} more"
    return _named(name, value)


def _named(field: str, value: Any) -> str:
    """Return a value as text; a number of an enum by its name."""
    kind = _ENUMS.get(field)
    if kind is not None:
        with suppress(ValueError):
            return str(kind(value).name.lower())
    if hasattr(value, "thrift_spec"):  # an entry of a list, such as the weight of a group
        fields = [getattr(value, spec[2]) for spec in filter(None, value.thrift_spec)]
        return ":".join([target_value(_text(each)) for each in fields if each is not None])
    return target_value(_text(value))


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
