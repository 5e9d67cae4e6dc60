"""One call: from its start to its one reply.

Always true: a call is answered at most once; `on_unsent` is called for a reply
that cannot be written; the queue's reply is sent without an await; a call whose
connection is lost, or that is not done at its deadline and a grace period, is
ended and abandoned. Knows nothing of frames.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Protocol, TypeVar

from foqs.core.items.validation import MalformedRequest
from foqs.core.limits.waiting_calls import WaitingPlace
from foqs.queue.port import NO_DELIVERIES, PendingCall
from foqs.rpc import codec
from foqs.rpc.messages import MessageHead, encode_struct, frame_reply, sequence_id
from foqs.rpc.methods import Caller, CallerSession, ServerMethod, unchanged
from foqs.rpc.peer_log import log
from foqs.runtime.deadlines import DeadlineSweeper
from foqs_contract.errors import (
    DeadlineExceeded,
    FoqsError,
    InvalidArgument,
    LimitExceeded,
    Unavailable,
    UnknownOutcome,
)
from foqs_contract.idl import ttypes
from foqs_contract.message_heads import frame_message


class CallConnection(Protocol):
    """The connection, as a call needs it."""

    backstop: DeadlineSweeper
    reply_bytes_max: int
    peer_address: str

    @property
    def session(self) -> CallerSession | None: ...

    def send(self, frame: bytes, on_unsent: Callable[[], None] | None = None) -> None:
        """Write a frame, now or soon, in the order of these calls; call `on_unsent` if it cannot be written."""
        ...

    def log_warning(self, text: str) -> None: ...

    def abandon_dequeues(self, sequence_ids: Collection[int]) -> None:
        """End the dequeues with these sequence ids, whose callers have left."""
        ...

    def on_call_ended(self, call: RpcCall, code: str | None) -> None:
        """Release what the call holds. `code` is OK, the error's code, or None if the call was not answered."""
        ...


_T = TypeVar("_T")


class RpcCall:
    """A call in flight: the `Caller` of its method.

    Args:
        cost_bytes: its part of the host's `ByteBudget`.
        started_at_s: on the server's stopwatch.
        waiting_place: its place among the host's `WaitingCalls`; None if it does not wait for items.

    Attributes:
        request: of a call that waits for items.
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
        "request",
        "started_at_s",
        "waiting_place",
    )

    def __init__(
        self,
        connection: CallConnection,
        head: MessageHead,
        seqid: bytes,
        method: ServerMethod,
        cost_bytes: int,
        started_at_s: float,
        waiting_place: WaitingPlace | None = None,
    ) -> None:
        self._connection = connection
        self._head = head
        self._seqid = seqid
        self.method = method
        self.cost_bytes = cost_bytes
        self.started_at_s = started_at_s
        self.waiting_place = waiting_place
        self.request: Any = None
        self.expires_at = 0.0
        self._is_open = True
        self._pending: PendingCall | None = None

    @property
    def session(self) -> CallerSession | None:
        """The peer's auth session; None if the host does not authenticate."""
        return self._connection.session

    @property
    def peer(self) -> str:
        """The address of the peer, or the part of this host that it is."""
        return self._connection.peer_address

    @property
    def sequence_id(self) -> int:
        """The caller's number of the call."""
        return sequence_id(self._head, self._seqid)

    def start(self, request: Any, deadline: float, grace_s: float) -> None:
        """Serve the request; the reply may be given before this returns."""
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
        """Send the reply `to_struct(value)`; call `on_unsent` if it cannot be sent."""
        if self._is_open:
            try:
                head, method = self._head, self.method
                body = method.encode_reply(head.is_compact, to_struct(value))
            except Exception:
                log.exception("the reply of %s cannot be encoded", self.method.row.name)
                self._reply_failure(internal_error(self.method))
            else:
                connection = self._connection
                if len(body) > connection.reply_bytes_max:
                    bytes_max, is_undone = connection.reply_bytes_max, on_unsent is not None
                    self._reply_failure(reply_too_long(self.method, len(body), bytes_max, is_undone=is_undone))
                else:
                    self._finish("OK")
                    seqid = self._seqid
                    connection.send(
                        frame_reply(head, seqid, body)
                        if head.is_compact
                        else frame_message(head.reply_prefix, seqid, body),
                        on_unsent,
                    )
                    return
        if on_unsent is not None:
            on_unsent()

    def fail(self, error: Exception) -> None:
        """Fail the whole call."""
        if not isinstance(error, FoqsError):
            log.error("%s failed with an unexpected error", self.method.row.name, exc_info=error)
            error = internal_error(self.method)
        elif isinstance(error, MalformedRequest):
            self._connection.log_warning(f"{self.method.row.name} was refused: {error}")
        if self._is_open:
            self._reply_failure(error)

    def log_malformed(self, text: str) -> None:
        """Log that the client sent bytes that no correct client sends; the reply reports it, too."""
        self._connection.log_warning(f"{self.method.row.name} was answered INVALID_ARGUMENT: {text}")

    def expire(self) -> None:
        """Fail the call as unfinished, because of its deadline or because the host stops."""
        if self._is_open:
            pending = self._pending
            self._reply_failure(deadline_error(self.method))
            self._abandon_pending(pending)

    def abandon(self) -> None:
        """End the call without a reply, because its connection is lost."""
        if self._is_open:
            pending = self._pending
            self._finish(None)
            self._abandon_pending(pending)

    def refuse(self, error: FoqsError) -> None:
        """Fail a dequeue that waits, because its principal may not make it any more."""
        if self._is_open:
            pending = self._pending
            self._reply_failure(error)
            self._abandon_pending(pending)

    def abandon_dequeue(self) -> None:
        """End a dequeue whose caller has left: reply without items, and release the items that are leased for it."""
        if self._is_open:
            pending = self._pending
            self.reply(codec.dequeue_reply, NO_DELIVERIES)
            self._abandon_pending(pending)

    def abandon_dequeues(self, sequence_ids: Collection[int]) -> None:
        """End dequeues of the same connection."""
        self._connection.abandon_dequeues(sequence_ids)

    # ------------------------------------------------------------------- inside

    def _reply_failure(self, error: FoqsError) -> None:
        self._finish(error.code)
        self._connection.send(frame_failure(self._head, self._seqid, self.method, error))

    def _finish(self, code: str | None) -> None:
        self._is_open = False
        self._pending = None  # breaks a reference cycle
        self._connection.on_call_ended(self, code)

    def _abandon_pending(self, pending: PendingCall | None) -> None:
        if pending is not None:
            try:
                pending.abandon()
            except Exception:
                log.exception("%s cannot be abandoned", self.method.row.name)


def abandon_dequeues(request: Any, deadline: float, caller: Caller) -> None:
    """Serve `abandonDequeues`. A call inside the host shares its connection with no other."""
    if request.sequence_ids is None:
        raise InvalidArgument("this is missing; name the dequeues to end", field="sequence_ids")
    if isinstance(caller, RpcCall):
        caller.abandon_dequeues(frozenset(request.sequence_ids))
    caller.reply(unchanged, ttypes.DoneReply())


def frame_failure(head: MessageHead, seqid: bytes, method: ServerMethod, error: FoqsError) -> bytes:
    """Return a frame that answers with CallFailed."""
    reply = method.result_class(failed=ttypes.CallFailed(codec.error_struct(error)))
    return frame_reply(head, seqid, encode_struct(head.is_compact, reply, method.result_spec))


def reply_too_long(method: ServerMethod, reply_bytes: int, reply_bytes_max: int, *, is_undone: bool) -> FoqsError:
    """Return the error for a reply that is not sent. The options let no reply of a call that writes become so long."""
    text = f"the reply would have {reply_bytes} bytes, more than {reply_bytes_max}; ask for fewer items"
    if not method.row.writes:
        return LimitExceeded(text)
    return UnknownOutcome(f"{text}; {'its items are released' if is_undone else 'the call has taken effect'}")


def deadline_error(method: ServerMethod) -> FoqsError:
    if method.row.writes:
        return UnknownOutcome("the call was not done by its deadline; it may still take effect")
    return DeadlineExceeded("the call was not done by its deadline; nothing was changed")


def internal_error(method: ServerMethod) -> FoqsError:
    if method.row.writes:
        return UnknownOutcome("the host failed during the call; it may have taken effect, see the host's log")
    return Unavailable("the host failed during the call; see the host's log", retry_after_ms=1_000)
