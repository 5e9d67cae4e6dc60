"""One call: from its start to its one reply.

Always true: a call is answered at most once; an answer that cannot be written
is given back; there is no await between finding the connection open and giving
the reply to the transport; a call ends at its deadline and a grace, whatever
its handler does. Knows nothing of frames.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from foqs.core.errors import DeadlineExceeded, FoqsError, LimitExceeded, Unavailable, UnknownOutcome
from foqs.core.validate import Malformed
from foqs.wire import codec
from foqs.wire.complaints import log
from foqs.wire.message import REPLY, Head, encode_struct, frame_reply
from foqs.wire.methods import Answer, Method
from foqs_client.idl import ttypes


class Line(Protocol):
    """What a call needs of its connection."""

    def send(self, frame: bytes) -> bool:
        """Gives a frame to the transport; False when the connection is gone, and then nothing was given."""
        ...

    def complain(self, text: str) -> None: ...


Observe: TypeAlias = Callable[[str, str, float], None]
"""(method, OK or the error's code, seconds) of each call that was answered."""


class Call:
    """A call in flight.

    Args:
        cost_bytes: what it holds of the host's room.
        ended: called once, when the handler has returned.
        observe: told of the answer, for metrics.
    """

    __slots__ = (
        "_answered",
        "_begun_at",
        "_ended",
        "_head",
        "_line",
        "_loop",
        "_method",
        "_observe",
        "_reply_bytes_max",
        "_seconds",
        "_task",
        "_timer",
        "cost_bytes",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        line: Line,
        head: Head,
        method: Method,
        cost_bytes: int,
        reply_bytes_max: int,
        ended: Callable[[Call], None],
        observe: Observe,
        seconds: Callable[[], float],
    ) -> None:
        self._line = line
        self._head = head
        self._method = method
        self._reply_bytes_max = reply_bytes_max
        self._ended = ended
        self._observe = observe
        self._loop = loop
        self._seconds = seconds
        self._begun_at = seconds()
        self._answered = False
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.cost_bytes = cost_bytes

    def start(self, request: Any, deadline: float, grace_s: float) -> None:
        self._timer = self._loop.call_at(deadline + grace_s, self.expire)
        self._task = self._loop.create_task(self._serve(request, deadline))
        self._task.add_done_callback(self._done)

    def expire(self) -> None:
        """Ends the call unanswered: by its deadline, or because the host stops."""
        if not self._answered:
            self._fail(unanswered(self._method))
        self.abandon()

    def abandon(self) -> None:
        """Nobody waits for the reply any more."""
        self._answered = True
        if self._task is not None:
            self._task.cancel()

    async def _serve(self, request: Any, deadline: float) -> None:
        try:
            answer = await self._method.serve(request, deadline)
        except FoqsError as error:
            if isinstance(error, Malformed):
                self._line.complain(f"{self._method.name} was refused: {error}")
            if not self._answered:
                self._fail(error)
        except Exception:
            log.exception("%s failed in a way that nobody foresaw", self._method.name)
            if not self._answered:
                self._fail(unforeseen(self._method))
        else:
            self._finish(answer)

    def _finish(self, answer: Answer) -> None:
        """Writes the answer, or gives it back. Must not await."""
        if answer.complaint:
            self._line.complain(f"{self._method.name} was answered INVALID_ARGUMENT: {answer.complaint}")
        sent = False
        if not self._answered:
            try:
                reply = self._method.result_class(success=answer.reply)
                body = encode_struct(self._head.compact, reply, self._method.result)
            except Exception:
                log.exception("the reply of %s cannot be encoded", self._method.name)
                self._fail(unforeseen(self._method))
            else:
                sent = self._send_whole(body)
        if not sent and answer.give_back is not None:
            answer.give_back()

    def _send_whole(self, body: bytes) -> bool:
        if len(body) > self._reply_bytes_max:
            self._fail(
                LimitExceeded(
                    f"the reply would have {len(body)} bytes, over {self._reply_bytes_max}; ask for fewer items"
                )
            )
            return False
        self._answer("OK")
        return self._line.send(frame_reply(self._head, REPLY, body))

    def _fail(self, error: FoqsError) -> None:
        self._answer(error.code.name)
        self._line.send(frame_failure(self._head, self._method, error))

    def _answer(self, code: str) -> None:
        self._answered = True
        self._observe(self._method.name, code, self._seconds() - self._begun_at)

    def _done(self, task: asyncio.Task[None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not task.cancelled() and task.exception() is not None:
            log.error("%s broke off", self._method.name, exc_info=task.exception())
        self._ended(self)


def frame_failure(head: Head, method: Method, error: FoqsError) -> bytes:
    """A whole frame that answers with CallFailed."""
    reply = method.result_class(failed=ttypes.CallFailed(codec.error(error)))
    return frame_reply(head, REPLY, encode_struct(head.compact, reply, method.result))


def unanswered(method: Method) -> FoqsError:
    if method.writes:
        return UnknownOutcome("the call was not done by its deadline; it may still take effect")
    return DeadlineExceeded("the call was not done by its deadline; nothing was changed")


def unforeseen(method: Method) -> FoqsError:
    if method.writes:
        return UnknownOutcome("the host failed while it worked on this; it may have taken effect, see the host's log")
    return Unavailable("the host failed while it worked on this, see the host's log", retry_after_ms=1_000)
