"""Dequeues that another host fills: where it has better items than this one, or this one has none.

Holds `Dequeues`. Always true: a call is passed on to one peer at a time, without
any wait there, and only where a peer told of better items than are here; who
waits, waits here and keeps his place; what comes too late is released, which
costs no attempt; what was passed on and not answered ends as UNKNOWN_OUTCOME
where this host has nothing either. Topics of one call take turns in choosing its
host, so that none is starved by another's priorities.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextlib import suppress
from copy import copy
from itertools import islice
from typing import Any, Final, Protocol, TypeAlias

from foqs.core.errors import FoqsError, UnknownOutcome
from foqs.core.item import TopicName
from foqs.service.api import Pending
from foqs.service.stock import Stock
from foqs.tier.passing import Passing
from foqs.tier.peers import Peer, Peers
from foqs.wire import codec
from foqs.wire.methods import Caller, Serve
from foqs_client.idl import ttypes
from foqs_client.message import Method

ANSWER_S: Final = 1.5
"""A peer that has not answered by then is not waited for; above the time in which it leaves out its late shards."""
RELEASE_S: Final = 2.0
"""What could not be released by then comes back when its lease ends."""
AGAIN_S: Final = 0.25
"""A peer that has something of a topic, and gave nothing, is not asked for it sooner; and who waits looks again."""
SILENT_S: Final = 2.0
"""The same of a peer that did not answer: each time costs its caller all of `ANSWER_S`."""
WAKES_MAX: Final = 100
"""So many who wait are looked at in one turn of the loop."""
VAIN_MAX: Final = 10_000
"""Peers' topics that were asked for in vain and are remembered; beyond it, all are asked for again."""

_DEQUEUE: Final = Method("dequeue", writes=True)
_RELEASE: Final = Method("release", writes=True)

Way: TypeAlias = tuple[Peer, Sequence[int]]
"""Which peer to ask, and the places of the topics to ask it for."""


class Told(Protocol):
    """Of a topic at another host, as it told last; see `foqs.tier.summaries.Head`."""

    @property
    def peer(self) -> Peer: ...
    @property
    def best_priority(self) -> int: ...
    @property
    def ready(self) -> int: ...
    @property
    def at(self) -> float: ...


class Elsewhere(Protocol):
    """What other hosts have; see `foqs.tier.summaries.Summaries`."""

    on_news: Callable[[Collection[TopicName]], None]

    def heads(self, topic: TopicName) -> Sequence[Told]:
        """Of hosts that have READY items of it, the best first."""
        ...

    def taken(self, peer: Peer, topic: TopicName, best_priority: int | None, ready: int) -> None:
        """What a peer has now."""
        ...


class Dequeues:
    """Serves `dequeue` from here or from the host that has the best.

    Args:
        local: by this host alone.
    """

    def __init__(self, local: Serve, peers: Peers, stock: Stock, elsewhere: Elsewhere) -> None:
        self.local = local
        self.peers = peers
        self._stock = stock
        self._elsewhere = elsewhere
        self._loop = asyncio.get_running_loop()
        self._turn = 0
        self._waiting: dict[Pending, Passing] = {}
        """Calls that this host has under way, and that may wait, by what stands for them in its queue."""
        self._again: dict[TopicName, asyncio.TimerHandle] = {}
        self._vain: dict[tuple[str, TopicName], float] = {}
        """By nonce and topic, until when it is not asked for."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.passed_on = 0
        """Calls that were sent to another host."""
        self.received = 0
        """Items that came of it."""
        self.released = 0
        """Of these, what came too late."""
        elsewhere.on_news = self._news

    def serve(self, request: Any, deadline: float, caller: Caller) -> Pending | None:
        """See `Serve`."""
        peers = self.peers
        topics = _topics(request) if peers.others else None
        if not topics:
            return self.local(request, deadline, caller)
        call = Passing(self, request, topics, deadline, caller)
        way = None if request.forwarded or request.local_only else self.way(topics)
        if way is None:
            call.wait_here()
        else:
            call.pass_on(way)
        return call

    # ---------------------------------------------------------------- choosing

    def way(self, topics: Sequence[TopicName]) -> Way | None:
        """Who has better items than this host; None: nobody is known to."""
        count = len(topics)
        first = 0
        if count > 1:
            first = self._turn = (self._turn + 1) % count
        for step in range(count):
            topic = topics[(first + step) % count]
            told = self._best(topic)
            if told is None:
                if count > 1 and self._here(topic) is not None:
                    return None
                continue
            here = self._here(topic)
            if here is not None and here <= told.best_priority:
                return None
            return told.peer, [place for place, each in enumerate(topics) if each is topic or self._beats(told, each)]
        return None

    def _best(self, topic: TopicName) -> Told | None:
        """Of the peers that may be asked for a topic."""
        heads = self._elsewhere.heads(topic)
        if not heads or self._stock.is_paused(topic):
            return None
        now, vain = self._loop.time(), self._vain
        for told in heads:
            peer = told.peer
            if peer.shunned_until <= now and (not vain or vain.get((peer.nonce, topic), 0.0) <= now):
                return told
        return None

    def _beats(self, told: Told, topic: TopicName) -> bool:
        """The same peer has better items of another topic too."""
        here = self._here(topic)
        return any(
            other.peer is told.peer and (here is None or other.best_priority < here)
            for other in self._elsewhere.heads(topic)
        )

    def _here(self, topic: TopicName) -> int | None:
        return None if self._stock.is_suspended else self._stock.best(topic)

    # ------------------------------------------------------------ what is told

    def heads(self, topics: Sequence[TopicName], *, others: bool) -> list[Any]:
        """What is left of topics here, and at others as far as it is known."""
        heads = []
        here, now = self.peers.here, self._loop.time()
        best = self._stock.best_of(topics)
        for topic in topics:
            if topic in best and here is not None:
                ready = self._stock.ready(topic)
                heads.append(ttypes.TopicHead(topic[1], ttypes.HostAddress(*here), best[topic], ready, 0))
            if others:
                for told in self._elsewhere.heads(topic):
                    at = ttypes.HostAddress(*told.peer.address)
                    age_ms = max(0, int((now - told.at) * 1_000))
                    heads.append(ttypes.TopicHead(topic[1], at, told.best_priority, told.ready, age_ms))
        return heads

    # ---------------------------------------------------------------- elsewhere

    async def ask(self, way: Way, request: Any, topics: Sequence[TopicName], deadline: float) -> list[Any]:
        """Deliveries of a peer; none where it has none, or does not take the call. Raises UnknownOutcome."""
        peer, places = way
        part = copy(request)
        part.forwarded, part.wait_ms, part.topics = True, None, [request.topics[place] for place in places]
        asked = [topics[place] for place in places]
        self.passed_on += 1
        try:
            reply = await self.peers.call(peer, _DEQUEUE, part, min(deadline, self._loop.time() + ANSWER_S))
        except FoqsError as error:
            silent = isinstance(error, UnknownOutcome)
            self._in_vain(peer, asked, SILENT_S if silent else AGAIN_S)
            if silent:
                raise
            return []
        if reply.heads is not None:
            left = {head.topic: head for head in reply.heads}
            for topic in asked:
                head = left.get(topic[1])
                best, ready = (None, 0) if head is None else (head.best_priority, head.ready or 0)
                self._elsewhere.taken(peer, topic, best, ready)
        if not reply.items:
            self._in_vain(peer, asked, AGAIN_S)
        self.received += len(reply.items or ())
        return reply.items or []

    def give_back(self, peer: Peer, namespace: Any, deliveries: Sequence[Any]) -> None:
        """Nobody takes these: they are ready again soon."""
        self.released += len(deliveries)
        leases = [ttypes.Lease(delivery.id, delivery.token) for delivery in deliveries]
        self.run(self._release(peer, ttypes.ReleaseRequest(namespace, leases)))

    async def _release(self, peer: Peer, request: Any) -> None:
        with suppress(FoqsError):
            await self.peers.call(peer, _RELEASE, request, self._loop.time() + RELEASE_S)

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Until it is done, whoever leaves."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _in_vain(self, peer: Peer, topics: Sequence[TopicName], seconds: float) -> None:
        if len(self._vain) >= VAIN_MAX:
            self._vain.clear()
        until = self._loop.time() + seconds
        for topic in topics:
            self._vain[peer.nonce, topic] = until

    # ------------------------------------------------------------------ waiting

    def waits(self, pending: Pending, call: Passing) -> None:
        """A call is under way here, and may wait."""
        self._waiting[pending] = call
        for topic in call.topics:
            if self._elsewhere.heads(topic):
                self._look_again(topic)

    def waits_no_more(self, pending: Pending | None) -> None:
        if pending is not None:
            self._waiting.pop(pending, None)

    def wake(self, topics: Collection[TopicName]) -> None:
        """There may be more of these elsewhere: those who wait for them ask for it, as many as it may serve."""
        for topic in topics:
            heads = self._elsewhere.heads(topic)
            if not heads or not self._stock.waits(topic):
                continue
            left = sum([max(1, told.ready) for told in heads])
            for pending in islice(self._stock.waiting(topic), WAKES_MAX):
                call = self._waiting.get(pending)
                if call is None:
                    continue
                if not call.passing:
                    way = self.way(call.topics)
                    if way is None:
                        continue
                    call.pass_on(way)
                left -= call.count(topic)
                if left <= 0:
                    break
            self._look_again(topic)

    def _news(self, topics: Collection[TopicName]) -> None:
        if self._waiting:
            self.wake(topics)

    def _look_again(self, topic: TopicName) -> None:
        if topic not in self._again:
            self._again[topic] = self._loop.call_later(AGAIN_S, self._again_now, topic)

    def _again_now(self, topic: TopicName) -> None:
        del self._again[topic]
        self.wake((topic,))


def _topics(request: Any) -> list[TopicName] | None:
    """What is asked for; None where that is not well-formed, of which this host itself tells the caller."""
    try:
        namespace = codec.name(request.namespace_name, "namespace_name")
        return [(namespace, codec.name(each.topic, "topic")) for each in request.topics or ()]
    except FoqsError:
        return None
