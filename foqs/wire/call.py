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
from foqs.core.validate import Malformed
from foqs.deadlines import Backstop
from foqs.service.api import Pending
from foqs.wire import codec
from foqs.wire.complaints import log
from foqs.wire.message import Head, encode_struct, frame_reply
from foqs.wire.methods import Method
from foqs.wire.visitor import Visitor
from foqs_client.idl import ttypes


class Line(Protocol):
    """What a call needs of its connection."""

    backstop: Backstop
    reply_bytes_max: int
    visitor: Visitor | None

    def send(self, frame: bytes, give_back: Callable[[], None] | None = None) -> None:
        """Writes a frame, now or soon, in the order of calls; calls `give_back` when it cannot be written."""
        ...

    def complain(self, text: str) -> None: ...

    def ended(self, call: Call, code: str | None) -> None:
        """The call holds nothing any more; it was answered OK or with this error's code, or (None) not at all."""
        ...


_T = TypeVar("_T")


class Call:
    """A call in flight: the `Caller` of its method.

    Args:
        cost_bytes: what it holds of the host's room.
        begun_at: on the stop watch of whoever observes.
    """

    __slots__ = ("_head", "_line", "_open", "_pending", "_seqid", "begun_at", "cost_bytes", "expires_at", "method")

    def __init__(self, line: Line, head: Head, seqid: bytes, method: Method, cost_bytes: int, begun_at: float) -> None:
        self._line = line
        self._head = head
        self._seqid = seqid
        self.method = method
        self.cost_bytes = cost_bytes
        self.begun_at = begun_at
        self.expires_at = 0.0
        self._open = True
        self._pending: Pending | None = None

    @property
    def visitor(self) -> Visitor | None:
        """The peer; None where the host asks nobody who he is."""
        return self._line.visitor

    def start(self, request: Any, deadline: float, grace_s: float) -> None:
        """Serves the request; the answer may be given before this returns."""
        self.expires_at = expires_at = deadline + grace_s
        try:
            pending = self.method.serve(request, deadline, self)
        except Exception as error:
            self.fail(error)
        else:
            if self._open:
                self._pending = pending
                backstop = self._line.backstop
                if expires_at < backstop.rings_at:
                    backstop.ring_by(expires_at)

    # ------------------------------------------------------- what ends the call

    def answer(self, shape: Callable[[_T], Any], value: _T, give_back: Callable[[], None] | None = None) -> None:
        """Writes the reply `shape(value)`, or gives it back."""
        if self._open:
            try:
                head, method = self._head, self.method
                body = encode_struct(head.compact, method.result_class(shape(value)), method.result)
            except Exception:
                log.exception("the reply of %s cannot be encoded", self.method.name)
                self._refuse(unforeseen(self.method))
            else:
                line = self._line
                if len(body) > line.reply_bytes_max:
                    self._refuse(too_long(len(body), line.reply_bytes_max))
                else:
                    self._end("OK")
                    line.send(frame_reply(head, self._seqid, body), give_back)
                    return
        if give_back is not None:
            give_back()

    def fail(self, error: Exception) -> None:
        """The call failed as a whole."""
        if not isinstance(error, FoqsError):
            log.error("%s failed in a way that nobody foresaw", self.method.name, exc_info=error)
            error = unforeseen(self.method)
        elif isinstance(error, Malformed):
            self._line.complain(f"{self.method.name} was refused: {error}")
        if self._open:
            self._refuse(error)

    def complain(self, text: str) -> None:
        """The client sent bytes that no correct client sends, and is told so in the answer."""
        self._line.complain(f"{self.method.name} was answered INVALID_ARGUMENT: {text}")

    def expire(self) -> None:
        """Ends the call as unfinished: by its deadline, or because the host stops."""
        if self._open:
            pending = self._pending
            self._refuse(unanswered(self.method))
            self._abandon(pending)

    def abandon(self) -> None:
        """Nobody waits for the reply any more."""
        if self._open:
            pending = self._pending
            self._end(None)
            self._abandon(pending)

    # ------------------------------------------------------------------- inside

    def _refuse(self, error: FoqsError) -> None:
        self._end(error.code.name)
        self._line.send(frame_failure(self._head, self._seqid, self.method, error))

    def _end(self, code: str | None) -> None:
        self._open = False
        self._pending = None  # it holds on to this call
        self._line.ended(self, code)

    def _abandon(self, pending: Pending | None) -> None:
        if pending is not None:
            try:
                pending.abandon()
            except Exception:
                log.exception("%s cannot be abandoned", self.method.name)


def frame_failure(head: Head, seqid: bytes, method: Method, error: FoqsError) -> bytes:
    """A whole frame that answers with CallFailed."""
    reply = method.result_class(failed=ttypes.CallFailed(codec.error(error)))
    return frame_reply(head, seqid, encode_struct(head.compact, reply, method.result))


def too_long(length: int, most: int) -> FoqsError:
    return LimitExceeded(f"the reply would have {length} bytes, over {most}; ask for fewer items")


def unanswered(method: Method) -> FoqsError:
    if method.writes:
        return UnknownOutcome("the call was not done by its deadline; it may still take effect")
    return DeadlineExceeded("the call was not done by its deadline; nothing was changed")


def unforeseen(method: Method) -> FoqsError:
    if method.writes:
        return UnknownOutcome("the host failed while it worked on this; it may have taken effect, see the host's log")
    return Unavailable("the host failed while it worked on this, see the host's log", retry_after_ms=1_000)
