"""One dequeue of a host that has others beside it: here, elsewhere, or both at once.

Holds `Passing`. Always true: it has one answer; its place among those who wait
here is kept while it is passed on, and what comes of the later of the two is
released; what comes after its caller has left too. Knows nothing of who has what.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, TypeVar

from foqs.core.errors import FoqsError, UnknownOutcome
from foqs.core.item import TopicName
from foqs.service.api import Pending
from foqs.wire.methods import Caller
from foqs.wire.visitor import Visitor
from foqs_client.idl import ttypes

if TYPE_CHECKING:
    from foqs.tier.dequeues import Dequeues, Way

_T = TypeVar("_T")


class Passing:
    """The `Caller` of this host's own serving, and what is under way for the real one.

    Attributes:
        passing: it is with a peer.
    """

    __slots__ = (
        "_begun",
        "_caller",
        "_deadline",
        "_dequeues",
        "_ended",
        "_here",
        "_here_ended",
        "_request",
        "_unknown",
        "passing",
        "topics",
    )

    def __init__(
        self, dequeues: Dequeues, request: Any, topics: Sequence[TopicName], deadline: float, caller: Caller
    ) -> None:
        self.topics = topics
        self.passing = False
        self._dequeues = dequeues
        self._request = request
        self._deadline = deadline
        self._caller = caller
        self._begun: float | None = None
        """When it was first passed on, if that was before it was served here."""
        self._here: Pending | None = None
        self._here_ended = False
        self._ended = False
        self._unknown: UnknownOutcome | None = None
        """It was passed on, and not answered."""

    def count(self, topic: TopicName) -> int:
        """How many it wants."""
        return self._request.topics[self.topics.index(topic)].count or 1

    # --------------------------------------------------------------------- here

    def wait_here(self) -> None:
        """Has this host serve it, with the time that is left to wait. Raises FoqsError."""
        request = self._request
        if request.wait_ms and self._begun is not None:
            passed_ms = int((asyncio.get_running_loop().time() - self._begun) * 1_000)
            request = copy(request)
            request.wait_ms = max(0, request.wait_ms - passed_ms)
        self._here = self._dequeues.local(request, self._deadline, self)
        alone = request.forwarded or request.local_only
        if self._here is not None and not self._here_ended and request.wait_ms and not alone:
            self._dequeues.waits(self._here, self)

    @property
    def visitor(self) -> Visitor | None:
        return self._caller.visitor

    def complain(self, text: str) -> None:
        self._caller.complain(text)

    def fail(self, error: Exception) -> None:
        self._end()
        self._caller.fail(error)

    def answer(self, shape: Callable[[_T], Any], value: _T, give_back: Callable[[], None] | None = None) -> None:
        """This host has done its part."""
        self._here_ended = True
        if value:
            self._tell(shape, value, give_back)
        elif not self.passing:
            self._tell_nothing()

    # ---------------------------------------------------------------- elsewhere

    def pass_on(self, way: Way) -> None:
        """Asks a peer as well."""
        if self._here is None and self._begun is None:
            self._begun = asyncio.get_running_loop().time()
        self.passing = True
        self._dequeues.run(self._pass_on(way))

    async def _pass_on(self, way: Way) -> None:
        dequeues, namespace = self._dequeues, self._request.namespace_name
        found: list[Any] = []
        try:
            found = await dequeues.ask(way, self._request, self.topics, self._deadline)
        except UnknownOutcome as error:
            self._unknown = error
        except Exception as error:
            self._abandon_here()
            self._fail(error)
        self.passing = False
        if found:
            peer, places = way
            if self._ended:
                dequeues.give_back(peer, namespace, found)
            else:
                self._abandon_here()
                self._tell(ttypes.DequeueReply, found, lambda: dequeues.give_back(peer, namespace, found))
            dequeues.wake([self.topics[place] for place in places])
        elif not self._ended:
            self._go_on_here()

    def _go_on_here(self) -> None:
        """The peer had nothing."""
        if self._here_ended or (self._here is None and self._unknown is not None):
            self._tell_nothing()
        elif self._here is None:
            try:
                self.wait_here()
            except Exception as error:
                self._fail(error)

    # ------------------------------------------------------------------ the end

    def abandon(self) -> None:
        """Nobody waits any more. What a peer has leased for it is released when that is known."""
        self._abandon_here()
        self._end()

    def _abandon_here(self) -> None:
        if self._here is not None and not self._here_ended:
            self._here.abandon()
            self._here_ended = True

    def _tell(self, shape: Callable[[_T], Any], value: _T, give_back: Callable[[], None] | None) -> None:
        self._end()

        def with_heads(value: _T) -> Any:
            reply = shape(value)
            reply.heads = self._dequeues.heads(self.topics, others=not self._request.forwarded)
            return reply

        self._caller.answer(with_heads, value, give_back)

    def _tell_nothing(self) -> None:
        if self._unknown is None:
            self._tell(ttypes.DequeueReply, [], None)
        else:
            self._fail(self._unknown)

    def _fail(self, error: Exception | FoqsError) -> None:
        if not self._ended:
            self._end()
            self._caller.fail(error)

    def _end(self) -> None:
        self._ended = True
        self._dequeues.waits_no_more(self._here)
