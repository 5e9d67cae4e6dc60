"""Notes the changes that administrators make over Thrift, and those that are refused to others.

Always true: each call that changes something and is not a producer's or a consumer's is
noted once, at the host that the caller called, when it ends or is denied; of the pages of
one bulk change each host notes the first that it gets. Knows nothing of what the calls do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, TypeVar

from foqs.access.audit_trail import AuditEntry, AuditTrail, target_value
from foqs.queue.port import PendingCall
from foqs.rpc.methods import Caller, CallerSession, MethodHandler, OnDenied, RpcService, ServerMethod
from foqs_contract.call_table import Scope
from foqs_contract.errors import FoqsError, PermissionDenied, UnknownOutcome
from foqs_contract.idl import ttypes

_T = TypeVar("_T")

LISTED_MAX: Final = 3
"""Entries of a list that a target names."""
_HIDDEN: Final = frozenset(("payload", "metadata", "json", "token", "items", "trace_context"))
"""Fields of which only their presence is noted."""
_LEFT_OUT: Final = frozenset(("namespace_name", "timeout_ms", "page", "forwarded", "shards", "start_key"))
_ENUMS: Final[Mapping[str, Any]] = {
    "action": ttypes.BulkAction,
    "command": ttypes.BulkJobCommand,
    "permissions": ttypes.Permission,
    "states": ttypes.ItemState,
}
"""The decoder returns plain numbers."""


class AuditedService:
    """An `RpcService` whose changes are noted.

    Args:
        service: serves the calls.
        now_ms: milliseconds since 1970-01-01 UTC.
    """

    def __init__(self, service: RpcService, trail: AuditTrail, now_ms: Callable[[], int]) -> None:
        self.timeout_s = service.timeout_s
        self._trail = trail
        self._now_ms = now_ms
        self.methods: Mapping[bytes, ServerMethod] = {
            name: replace(method, handle=self._noting(method), on_denied=self._noting_denial(method))
            if method.row.is_audited
            else method
            for name, method in service.methods.items()
        }

    def _noting(self, method: ServerMethod) -> MethodHandler:
        def handle(request: Any, deadline: float, caller: Caller) -> PendingCall | None:
            if _is_noted_elsewhere(request, caller):
                return method.handle(request, deadline, caller)
            noting = _NotingCaller(
                caller, lambda outcome: self._note(method, request, caller.session, caller.peer, outcome)
            )
            try:
                noting.pending = method.handle(request, deadline, noting)
            except Exception as error:
                noting.end(error.code if isinstance(error, FoqsError) else UnknownOutcome.code)
                raise
            return noting

        return handle

    def _noting_denial(self, method: ServerMethod) -> OnDenied:
        return lambda request, session, peer: self._trail.record(
            self._entry(method, request, session, peer, PermissionDenied.code)
        )

    def _note(self, method: ServerMethod, request: Any, session: CallerSession | None, peer: str, outcome: str) -> None:
        entry = self._entry(method, request, session, peer, outcome)
        # A cursor proves nothing: its caller may have made it up.
        if not (_is_later_page(request) and self._is_walk_noted(entry)):
            self._trail.record(entry)

    def _entry(
        self, method: ServerMethod, request: Any, session: CallerSession | None, peer: str, outcome: str
    ) -> AuditEntry:
        namespace = _namespace(method, request)
        return AuditEntry(
            at_ms=self._now_ms(),
            principal=None if session is None else session.principal_name,
            peer=peer,
            call=method.row.name,
            namespace=None if namespace is None else _text(namespace),
            target=describe(request),
            outcome=outcome,
        )

    def _is_walk_noted(self, page: AuditEntry) -> bool:
        """Return whether an earlier page of the same change is in the trail."""
        return any(_change_of(entry) == _change_of(page) for entry in self._trail.newest())


def _change_of(entry: AuditEntry) -> tuple[str | None, str, str | None, str, str]:
    return entry.principal, entry.call, entry.namespace, entry.target, entry.outcome


def _namespace(method: ServerMethod, request: Any) -> bytes | None:
    """Return the namespace that a request names; None if it names none."""
    if method.row.requirement.scope is Scope.NAMESPACE:
        return method.namespace_of(request)
    settings = getattr(request, "settings", None)
    name: bytes | None = getattr(request, "namespace_name", None) if settings is None else settings.name
    return name


def _is_noted_elsewhere(request: Any, caller: Caller) -> bool:
    """Return whether a host has forwarded the call. Hosts are administrators; the mark of anybody else is not believed."""
    session = caller.session
    return bool(getattr(request, "forwarded", None)) and (session is None or session.is_administrator)


def _is_later_page(request: Any) -> bool:
    page = getattr(request, "page", None)
    return page is not None and page.cursor is not None


class _NotingCaller:
    """The `Caller` of a noted call, and its `PendingCall`: notes the end once."""

    def __init__(self, caller: Caller, on_end: Callable[[str], None]) -> None:
        self._caller = caller
        self._on_end: Callable[[str], None] | None = on_end
        self.pending: PendingCall | None = None

    @property
    def session(self) -> CallerSession | None:
        return self._caller.session

    @property
    def peer(self) -> str:
        return self._caller.peer

    def reply(self, to_struct: Callable[[_T], Any], value: _T, on_unsent: Callable[[], None] | None = None) -> None:
        self.end("OK")
        self._caller.reply(to_struct, value, on_unsent)

    def fail(self, error: Exception) -> None:
        self.end(error.code if isinstance(error, FoqsError) else UnknownOutcome.code)
        self._caller.fail(error)

    def log_malformed(self, text: str) -> None:
        self._caller.log_malformed(text)

    def abandon(self) -> None:
        """End the call without an answer: it may be done or not."""
        self.end(UnknownOutcome.code)
        if self.pending is not None:
            self.pending.abandon()

    def end(self, outcome: str) -> None:
        """Note the end, if this is the first."""
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end(outcome)


# ------------------------------------------------------------------ what it concerns


def describe(request: Any) -> str:
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
    return target_value(_text(value))


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
