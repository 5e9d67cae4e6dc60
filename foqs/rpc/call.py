"""One call: from its start to its one reply.

Always true: a call is answered at most once; an answer that cannot be written
is given back; the queue's answer goes to the line without an await; a call
that is lost, or is not done at its deadline and a grace, is ended and abandoned,
whatever serves it. Knows nothing of frames.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from foqs.core.errors import DeadlineExceeded, FoqsError, LimitExceeded, Unavailable, UnknownOutcome
from foqs.core.items.validation import MalformedRequest
from foqs.queue.port import PendingCall
from foqs.rpc import codec
from foqs.rpc.auth_session import AuthSession
from foqs.rpc.messages import MessageHead, encode_struct, frame_reply
from foqs.rpc.methods import ServerMethod
from foqs.rpc.peer_log import log
from foqs.runtime.deadlines import DeadlineSweeper
from foqs_client.idl import ttypes


class CallConnection(Protocol):
    """What a call needs of its connection."""

    backstop: DeadlineSweeper
    reply_bytes_max: int
    session: AuthSession | None

    def send(self, frame: bytes, on_unsent: Callable[[], None] | None = None) -> None:
        """Writes a frame, now or soon, in the order of calls; calls `on_unsent` when it cannot be written."""
        ...

    def log_warning(self, text: str) -> None: ...

    def on_call_ended(self, call: RpcCall, code: str | None) -> None:
        """The call holds nothing any more; it was answered OK or with this error's code, or (None) not at all."""
        ...


_T = TypeVar("_T")


class RpcCall:
    """A call in flight: the `Caller` of its method.

    Args:
        cost_bytes: what it holds of the host's room.
        started_at_s: on the stop watch of whoever observes.
    """

    __slots__ = (
        "_connection",
        "_head",
        "_is_open",
        "_pending",
        "_seqid",
        "cost_bytes",
        "expires_at",
        "method",
        "started_at_s",
    )

    def __init__(
        self,
        connection: CallConnection,
        head: MessageHead,
        seqid: bytes,
        method: ServerMethod,
        cost_bytes: int,
        started_at_s: float,
    ) -> None:
        self._connection = connection
        self._head = head
        self._seqid = seqid
        self.method = method
        self.cost_bytes = cost_bytes
        self.started_at_s = started_at_s
        self.expires_at = 0.0
        self._is_open = True
        self._pending: PendingCall | None = None

    @property
    def session(self) -> AuthSession | None:
        """The peer; None where the host asks nobody who he is."""
        return self._connection.session

    def start(self, request: Any, deadline: float, grace_s: float) -> None:
        """Serves the request; the answer may be given before this returns."""
        self.expires_at = expires_at = deadline + grace_s
        try:
            pending = self.method.handle(request, deadline, self)
        except Exception as error:
            self.fail(error)
        else:
            if self._is_open:
                self._pending = pending
                backstop = self._connection.backstop
                if expires_at < backstop.next_sweep_at:
                    backstop.sweep_by(expires_at)

    # ------------------------------------------------------- what ends the call

    def reply(self, to_struct: Callable[[_T], Any], value: _T, on_unsent: Callable[[], None] | None = None) -> None:
        """Writes the reply `shape(value)`, or gives it back."""
        if self._is_open:
            try:
                head, method = self._head, self.method
                body = encode_struct(head.is_compact, method.result_class(to_struct(value)), method.result_spec)
            except Exception:
                log.exception("the reply of %s cannot be encoded", self.method.name)
                self._reply_failure(internal_error(self.method))
            else:
                line = self._connection
                if len(body) > line.reply_bytes_max:
                    self._reply_failure(reply_too_long(len(body), line.reply_bytes_max))
                else:
                    self._finish("OK")
                    line.send(frame_reply(head, self._seqid, body), on_unsent)
                    return
        if on_unsent is not None:
            on_unsent()

    def fail(self, error: Exception) -> None:
        """The call failed as a whole."""
        if not isinstance(error, FoqsError):
            log.error("%s failed in a way that nobody foresaw", self.method.name, exc_info=error)
            error = internal_error(self.method)
        elif isinstance(error, MalformedRequest):
            self._connection.log_warning(f"{self.method.name} was refused: {error}")
        if self._is_open:
            self._reply_failure(error)

    def log_malformed(self, text: str) -> None:
        """The client sent bytes that no correct client sends, and is told so in the answer."""
        self._connection.log_warning(f"{self.method.name} was answered INVALID_ARGUMENT: {text}")

    def expire(self) -> None:
        """Ends the call as unfinished: by its deadline, or because the host stops."""
        if self._is_open:
            pending = self._pending
            self._reply_failure(deadline_error(self.method))
            self._abandon_pending(pending)

    def abandon(self) -> None:
        """Nobody waits for the reply any more."""
        if self._is_open:
            pending = self._pending
            self._finish(None)
            self._abandon_pending(pending)

    # ------------------------------------------------------------------- inside

    def _reply_failure(self, error: FoqsError) -> None:
        self._finish(error.code.name)
        self._connection.send(frame_failure(self._head, self._seqid, self.method, error))

    def _finish(self, code: str | None) -> None:
        self._is_open = False
        self._pending = None  # it holds on to this call
        self._connection.on_call_ended(self, code)

    def _abandon_pending(self, pending: PendingCall | None) -> None:
        if pending is not None:
            try:
                pending.abandon()
            except Exception:
                log.exception("%s cannot be abandoned", self.method.name)


def frame_failure(head: MessageHead, seqid: bytes, method: ServerMethod, error: FoqsError) -> bytes:
    """A whole frame that answers with CallFailed."""
    reply = method.result_class(failed=ttypes.CallFailed(codec.error_struct(error)))
    return frame_reply(head, seqid, encode_struct(head.is_compact, reply, method.result_spec))


def reply_too_long(reply_bytes: int, reply_bytes_max: int) -> FoqsError:
    return LimitExceeded(f"the reply would have {reply_bytes} bytes, over {reply_bytes_max}; ask for fewer items")


def deadline_error(method: ServerMethod) -> FoqsError:
    if method.writes:
        return UnknownOutcome("the call was not done by its deadline; it may still take effect")
    return DeadlineExceeded("the call was not done by its deadline; nothing was changed")


def internal_error(method: ServerMethod) -> FoqsError:
    if method.writes:
        return UnknownOutcome("the host failed while it worked on this; it may have taken effect, see the host's log")
    return Unavailable("the host failed while it worked on this, see the host's log", retry_after_ms=1_000)
