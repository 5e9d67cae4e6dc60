"""Dequeues that are made in one turn of the event loop, sent as one.

Holds `Takers`. Always true: every item that comes goes to one caller, in their
order and to none more than it wants, or is released; a caller that got nothing
asks again, with the others that got nothing and with the rest of its time, until
a host says that there is nothing. So every answer serves the one that waits
longest. Knows nothing of connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

from foqs_client.errors import FoqsError
from foqs_client.gather import ENTRIES_EACH_MAX, PERHAPS_ANOTHERS, Gatherer, Part, Size
from foqs_client.types import Delivery

Wants: TypeAlias = Mapping[str, int]
Taker: TypeAlias = Part[Wants, list[Delivery] | FoqsError]
Ask: TypeAlias = Callable[[Wants, int, int], Awaitable[list[Delivery]]]
"""Asks a host for so many of each topic, with milliseconds to wait and of the call."""


class Takers:
    """Those of one client.

    Args:
        give_back: releases what nobody wants any more.
    """

    def __init__(self, gatherer: Gatherer, give_back: Callable[[Sequence[Delivery]], None]) -> None:
        self._gatherer = gatherer
        self._give_back = give_back

    async def take(self, wants: Wants, wait_ms: int, lease_ms: int | None, timeout_ms: int, ask: Ask) -> list[Delivery]:
        """What `ask` brings, asked together with other calls for the same topics and times. Raises FoqsError."""
        size = _size(wants)
        if size is None:
            return await ask(wants, wait_ms, timeout_ms)
        kind = ("dequeue", tuple(wants), wait_ms, lease_ms, timeout_ms)
        share: asyncio.Future[list[Delivery] | FoqsError | None]
        share, begun = self._gatherer.join(kind, wants, size)
        try:
            if begun is None:
                answer = await share
            else:
                answer = await self._gatherer.lead(begun, partial(self._serve, wait_ms, timeout_ms, ask))
        except asyncio.CancelledError:
            self._left(share)
            raise
        if answer is None:
            return await ask(wants, wait_ms, timeout_ms)
        if isinstance(answer, FoqsError):
            raise answer
        return answer

    async def _serve(self, wait_ms: int, timeout_ms: int, ask: Ask, takers: Sequence[Taker]) -> None:
        """Asks for all of them until each has its answer."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        left_wait_ms, left_ms = wait_ms, timeout_ms
        while takers:
            wants = {topic: sum([taker.given[topic] for taker in takers]) for topic in takers[0].given}
            try:
                found = await ask(wants, left_wait_ms, left_ms)
            except FoqsError as error:
                for taker in takers:
                    # A copy for each: an error that is raised is changed by it.
                    taker.tell(None if isinstance(error, PERHAPS_ANOTHERS) else error.moved())
                return
            takers = self._deal(found, takers)
            passed_ms = int((loop.time() - begun) * 1_000)
            left_wait_ms, left_ms = max(0, wait_ms - passed_ms), timeout_ms - passed_ms
            if not found or left_ms < 1:
                break
        for taker in takers:
            taker.tell([])

    def _deal(self, found: Sequence[Delivery], takers: Sequence[Taker]) -> Sequence[Taker]:
        """Tells those that get something, releases what nobody wants, and returns those that go on waiting."""
        waiting = [taker for taker in takers if taker.waits]
        shares, surplus = deal(found, [taker.given for taker in waiting])
        for taker, share in zip(waiting, shares, strict=True):
            if share:
                taker.tell(share)
        if surplus:
            self._give_back(surplus)
        return [taker for taker in waiting if taker.waits]

    def _left(self, share: asyncio.Future[list[Delivery] | FoqsError | None]) -> None:
        """Its caller has gone: what it was given just then is nobody's."""
        if share.done() and not share.cancelled() and share.exception() is None:
            answer = share.result()
            if answer and not isinstance(answer, FoqsError):
                self._give_back(answer)


def deal(found: Sequence[Delivery], wanted: Sequence[Wants]) -> tuple[list[list[Delivery]], list[Delivery]]:
    """(for each caller what it gets, what is left over): the first callers first, none more than it wants of a topic."""
    shares: list[list[Delivery]] = [[] for _ in wanted]
    left: dict[str, list[int]] = {}
    first: dict[str, int] = {}
    surplus = []
    for delivery in found:
        topic = delivery.topic
        if topic not in left:
            left[topic] = [wants.get(topic, 0) for wants in wanted]
            first[topic] = 0
        counts, place = left[topic], first[topic]
        while place < len(counts) and not counts[place]:
            place += 1
        first[topic] = place
        if place == len(counts):
            surplus.append(delivery)
        else:
            counts[place] -= 1
            shares[place].append(delivery)
    return shares, surplus


def _size(wants: Wants) -> Size | None:
    """Of what is wanted; None of much, and of what a host will refuse."""
    entries = 0
    for count in wants.values():
        if type(count) is not int or count < 1:
            return None
        entries += count
    return (entries, 0, ()) if 0 < entries <= ENTRIES_EACH_MAX else None
