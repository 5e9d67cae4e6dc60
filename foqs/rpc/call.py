"""A call on its way through a host, and the method that it is a call of.

Holds `Call`. A Thrift connection makes one for each call, and so do the parts of this host that
make calls themselves. Always true: a call has one reply or one failure, and only the first is sent;
a handler that serves a call now replies before it returns, and one that serves it later returns
a `PendingCall`. Knows nothing of bytes, nor of what a call does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from foqs.access.call_permissions import Principal
from foqs.queue.port import PendingCall
from foqs.rpc.type_check import TypeCheck
from foqs_contract.call_table import CallRow
from foqs_contract.errors import DeadlineExceeded, FoqsError, LimitExceeded, Unavailable, UnknownOutcome

try:
    from mypy_extensions import mypyc_attr
except ImportError:  # only the compiler needs it

    def mypyc_attr(*attrs: str, **kwattrs: object) -> Any:  # type: ignore[misc]
        return lambda kind: kind


_T = TypeVar("_T")


@mypyc_attr(allow_interpreted_subclasses=True)
class Call(ABC):
    """One call of the contract, as its handler gets it.

    Attributes:
        request: the decoded struct; its strings are bytes. It must not be changed.
        deadline: the moment at which the call must have ended, on the event loop's clock.
        principal: the principal that makes the call; None if the host does not authenticate, or if a part of this host
            makes the call and has checked the grants itself.
        peer: the address that the call came from, or the part of this host that makes it.
    """

    __slots__ = ("deadline", "method", "peer", "principal", "request")

    method: ServerMethod
    request: Any
    deadline: float
    principal: Principal | None
    peer: str

    @abstractmethod
    def reply(self, to_struct: Callable[[_T], Any], value: _T, give_back: Callable[[], None] | None = None) -> None:
        """Reply with the struct `to_struct(value)`.

        `give_back` is called if, and only if, no part of the reply can be written.
        """

    @abstractmethod
    def fail(self, error: Exception) -> None:
        """Fail the whole call; an error that is no FoqsError is a bug."""

    @abstractmethod
    def log_malformed(self, text: str) -> None:
        """Log that the client sent bytes that no correct client sends."""


@mypyc_attr(allow_interpreted_subclasses=True)
class WrappedCall(Call):
    """A call that is served for another one: what it does not change goes to `outer`.

    Attributes:
        outer: gets the reply.
        pending: the pending call of the handler that serves it here; None if that handler replied at once.
    """

    __slots__ = ("outer", "pending")

    def __init__(self, outer: Call) -> None:
        self.outer = outer
        self.pending: PendingCall | None = None
        self.method = outer.method
        self.request = outer.request
        self.deadline = outer.deadline
        self.principal = outer.principal
        self.peer = outer.peer

    def reply(self, to_struct: Callable[[_T], Any], value: _T, give_back: Callable[[], None] | None = None) -> None:
        self.outer.reply(to_struct, value, give_back)

    def fail(self, error: Exception) -> None:
        self.outer.fail(error)

    def log_malformed(self, text: str) -> None:
        self.outer.log_malformed(text)

    def abandon(self) -> None:
        """End the call without a reply."""
        if self.pending is not None:
            self.pending.abandon()


Handler: TypeAlias = Callable[[Call], PendingCall | None]
"""Serves a call: replies now and returns None, returns a pending call that replies later, or raises FoqsError."""
RequestCheck: TypeAlias = Callable[[Any], None]
"""Checks the request of a principal that is no administrator. Raises PermissionDenied."""


@dataclass(slots=True, frozen=True)
class ServerMethod:
    """One method: its row, its structs and its handler."""

    row: CallRow
    handle: Handler
    args_spec: list[Any]
    type_check: TypeCheck
    request_fields: frozenset[str]
    list_fields: tuple[str, ...]
    """The request's fields that are lists."""
    result_spec: list[Any]
    result_class: Any
    read_request: Callable[[bytes, int, int, int], Any] | None
    """Reads large requests of the usual form: (message, start of the arguments, longest string, most entries)."""
    encode_reply: Callable[[bool, Any], bytes]
    """Returns the bytes of the result of a successful call: (is_compact, reply struct)."""
    namespace_of: Callable[[Any], bytes | None]
    """Reads the namespace that a request names."""
    check: RequestCheck
    is_audited: bool
    """Whether its calls are noted in the audit, as its row says. It is here because it is read for each call."""


Layer: TypeAlias = Callable[[ServerMethod], Handler]
"""Returns the handler that serves a method in place of its own handler, or with its help."""


def unchanged(reply: Any) -> Any:
    """Return the argument: a `to_struct` for values that are reply structs already."""
    return reply


def reply_too_long(method: ServerMethod, reply_bytes: int, reply_bytes_max: int, *, is_given_back: bool) -> FoqsError:
    """Return the error for a reply that is not sent. The options let no reply of a call that writes become so long."""
    text = f"the reply would have {reply_bytes} bytes, more than {reply_bytes_max}; ask for fewer items"
    if not method.row.writes:
        return LimitExceeded(text)
    return UnknownOutcome(
        f"{text}; {'its items are released' if is_given_back else 'the call has taken effect, so do not repeat it'}"
    )


def deadline_error(method: ServerMethod) -> FoqsError:
    if method.row.writes:
        return UnknownOutcome(
            "the call was not done by its deadline and may still take effect; check before you repeat it"
        )
    return DeadlineExceeded("the call was not done by its deadline; nothing was changed; give it more time")


def internal_error(method: ServerMethod) -> FoqsError:
    if method.row.writes:
        return UnknownOutcome(
            "the host failed during the call; it may have taken effect, so check before you repeat it; see the host's log"
        )
    return Unavailable("the host failed during the call; see the host's log", retry_after_ms=1_000)
