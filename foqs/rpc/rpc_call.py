"""A call of a connection: from its start to its one reply.

Always true: a call is answered at most once; `give_back` is called for a reply
that cannot be written; the queue's reply is sent without an await; a call whose
connection is lost, or that is not done at its deadline and a grace period, is
ended and abandoned. Knows nothing of frames.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Protocol, TypeVar

from foqs.access.call_permissions import Principal
from foqs.core.items.validation import MalformedRequest
from foqs.core.limits.waiting_calls import WaitingPlace
from foqs.queue.port import NOTHING_LEASED, PendingCall
from foqs.rpc import reply_structs
from foqs.rpc.call import Call, ServerMethod, deadline_error, internal_error, reply_too_long
from foqs.rpc.messages import MessageHead, encode_struct, frame_reply, sequence_id
from foqs.rpc.peer_log import log
from foqs.runtime.deadlines import DeadlineSweeper
from foqs_contract.errors import FoqsError
from foqs_contract.idl import ttypes
from foqs_contract.message_heads import frame_message
from foqs_contract.request import Request


class CallSession(Protocol):
    """The auth session of a connection, as `authenticate` needs it."""

    def authenticate(self, token: bytes | None, call: Call) -> PendingCall | None:
        """Reply with the token's principal; without a token, with the current principal. Raises Unauthenticated."""
        ...


class CallConnection(Protocol):
    """The part of a connection that its calls use."""

    backstop: DeadlineSweeper
    reply_bytes_max: int
    peer_address: str

    @property
    def session(self) -> CallSession | None:
        """The auth session of the connection; None if the host does not authenticate."""
        ...

    def send(self, frame: bytes, give_back: Callable[[], None] | None = None) -> None:
        """Write a frame, now or soon, in the order of these calls; call `give_back` if it cannot be written."""
        ...

    def log_warning(self, text: str) -> None: ...

    def abandon_dequeues(self, sequence_ids: Collection[int]) -> None:
        """End the dequeues with these sequence ids, whose callers have left."""
        ...

    def on_call_ended(self, call: RpcCall, code: str | None) -> None:
        """Release what the call holds. `code` is OK, the error's code, or None if the call was not answered."""
        ...


_T = TypeVar("_T")


class RpcCall(Call):
    """A call in flight that came over a connection.

    Args:
        cost_bytes: the part of the host's `ByteBudget` that the call has reserved.
        started_at_s: the moment at which the call started, on the server's stopwatch.
        waiting_place: the call's place among the host's `WaitingCalls`; None if it does not wait for items.
    """

    __slots__ = (
        "_head",
        "_is_open",
        "_pending",
        "_seqid",
        "connection",
        "cost_bytes",
        "expires_at",
        "started_at_s",
        "waiting_place",
    )

    def __init__(
        self,
        connection: CallConnection,
        head: MessageHead,
        seqid: bytes,
        method: ServerMethod,
        request: Request,
        deadline: float,
        principal: Principal | None,
        cost_bytes: int,
        started_at_s: float,
        waiting_place: WaitingPlace | None = None,
    ) -> None:
        self.connection = connection
        self._head = head
        self._seqid = seqid
        self.method = method
        self.request = request
        self.deadline = deadline
        self.principal = principal
        self.peer = connection.peer_address
        self.cost_bytes = cost_bytes
        self.started_at_s = started_at_s
        self.waiting_place = waiting_place
        self._is_open = True
        self._pending: PendingCall | None = None

    @property
    def sequence_id(self) -> int:
        """The caller's number of the call."""
        return sequence_id(self._head, self._seqid)

    def start(self, grace_s: float) -> None:
        """Serve the call; the reply may be given before this returns."""
        self.expires_at = expires_at = self.deadline + grace_s
        try:
            pending = self.method.handle(self)
        except Exception as error:
            self.fail(error)
        else:
            if self._is_open:
                self._pending = pending
                backstop = self.connection.backstop
                if expires_at < backstop.next_sweep_at:
                    backstop.sweep_by(expires_at)

    # ------------------------------------------------------- what ends the call

    def reply(self, to_struct: Callable[[_T], Any], value: _T, give_back: Callable[[], None] | None = None) -> None:
        """Send the reply `to_struct(value)`; call `give_back` if it cannot be sent."""
        if self._is_open:
            try:
                head, method = self._head, self.method
                body = method.encode_reply(head.is_compact, to_struct(value))
            except Exception:
                log.exception("the reply to a call of %s cannot be encoded", self.method.row.name)
                self._reply_failure(internal_error(self.method))
            else:
                connection = self.connection
                if len(body) > connection.reply_bytes_max:
                    bytes_max, is_given_back = connection.reply_bytes_max, give_back is not None
                    self._reply_failure(reply_too_long(self.method, len(body), bytes_max, is_given_back=is_given_back))
                else:
                    self._finish("OK")
                    seqid = self._seqid
                    connection.send(
                        frame_reply(head, seqid, body)
                        if head.is_compact
                        else frame_message(head.reply_prefix, seqid, body),
                        give_back,
                    )
                    return
        if give_back is not None:
            give_back()

    def fail(self, error: Exception) -> None:
        """Fail the whole call."""
        if not isinstance(error, FoqsError):
            log.error("a call of %s failed with an unexpected error", self.method.row.name, exc_info=error)
            error = internal_error(self.method)
        elif isinstance(error, MalformedRequest):
            self.connection.log_warning(f"{self.method.row.name} was refused: {error}")
        if self._is_open:
            self._reply_failure(error)

    def log_malformed(self, text: str) -> None:
        """Log that the client sent bytes that no correct client sends; the reply reports it, too."""
        self.connection.log_warning(f"{self.method.row.name} was answered INVALID_ARGUMENT: {text}")

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
            self.reply(reply_structs.dequeue_reply, NOTHING_LEASED)
            self._abandon_pending(pending)

    # ------------------------------------------------------------------- inside

    def _reply_failure(self, error: FoqsError) -> None:
        self._finish(error.code)
        self.connection.send(frame_failure(self._head, self._seqid, self.method, error))

    def _finish(self, code: str | None) -> None:
        self._is_open = False
        self._pending = None  # breaks a reference cycle
        self.connection.on_call_ended(self, code)

    def _abandon_pending(self, pending: PendingCall | None) -> None:
        if pending is not None:
            try:
                pending.abandon()
            except Exception:
                log.exception("the work for an abandoned call of %s cannot be withdrawn", self.method.row.name)


def frame_failure(head: MessageHead, seqid: bytes, method: ServerMethod, error: FoqsError) -> bytes:
    """Return a frame that answers with CallFailed."""
    reply = method.result_class(failed=ttypes.CallFailed(reply_structs.error_struct(error)))
    return frame_reply(head, seqid, encode_struct(head.is_compact, reply, method.result_spec))
