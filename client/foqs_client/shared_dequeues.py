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

from foqs_client.coalescing import ENTRIES_PER_CALLER_MAX, MAYBE_CAUSED_BY_OTHERS, CallSize, Coalescer, Participant
from foqs_client.errors import FoqsError
from foqs_client.types import Delivery

Wants: TypeAlias = Mapping[str, int]
WaitingDequeue: TypeAlias = Participant[Wants, list[Delivery] | FoqsError]
SendDequeue: TypeAlias = Callable[[Wants, int, int], Awaitable[list[Delivery]]]
"""Asks a host for so many of each topic, with milliseconds to wait and of the call."""


class SharedDequeues:
    """Those of one client.

    Args:
        release: releases what nobody wants any more.
    """

    def __init__(self, coalescer: Coalescer, release: Callable[[Sequence[Delivery]], None]) -> None:
        self._coalescer = coalescer
        self._release = release

    async def dequeue(
        self, wants: Wants, wait_ms: int, lease_ms: int | None, timeout_ms: int, send: SendDequeue
    ) -> list[Delivery]:
        """What `send` brings, asked together with other calls for the same topics and times. Raises FoqsError."""
        size = _size_of_wants(wants)
        if size is None:
            return await send(wants, wait_ms, timeout_ms)
        kind = ("dequeue", tuple(wants), wait_ms, lease_ms, timeout_ms)
        share: asyncio.Future[list[Delivery] | FoqsError | None]
        share, begun = self._coalescer.join(kind, wants, size)
        try:
            if begun is None:
                answer = await share
            else:
                answer = await self._coalescer.lead(begun, partial(self._serve, wait_ms, timeout_ms, send))
        except asyncio.CancelledError:
            self._on_caller_cancelled(share)
            raise
        if answer is None:
            return await send(wants, wait_ms, timeout_ms)
        if isinstance(answer, FoqsError):
            raise answer
        return answer

    async def _serve(self, wait_ms: int, timeout_ms: int, send: SendDequeue, waiting: Sequence[WaitingDequeue]) -> None:
        """Asks for all of them until each has its answer."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        left_wait_ms, left_ms = wait_ms, timeout_ms
        while waiting:
            wants = {topic: sum([taker.request[topic] for taker in waiting]) for topic in waiting[0].request}
            try:
                found = await send(wants, left_wait_ms, left_ms)
            except FoqsError as error:
                for taker in waiting:
                    # A copy for each: an error that is raised is changed by it.
                    taker.set_reply(None if isinstance(error, MAYBE_CAUSED_BY_OTHERS) else error.with_shifted_index())
                return
            waiting = self._distribute(found, waiting)
            passed_ms = int((loop.time() - begun) * 1_000)
            left_wait_ms, left_ms = max(0, wait_ms - passed_ms), timeout_ms - passed_ms
            if not found or left_ms < 1:
                break
        for taker in waiting:
            taker.set_reply([])

    def _distribute(
        self, deliveries: Sequence[Delivery], dequeues: Sequence[WaitingDequeue]
    ) -> Sequence[WaitingDequeue]:
        """Tells those that get something, releases what nobody wants, and returns those that go on waiting."""
        waiting = [taker for taker in dequeues if taker.is_waiting]
        shares, surplus = distribute(deliveries, [taker.request for taker in waiting])
        for taker, share in zip(waiting, shares, strict=True):
            if share:
                taker.set_reply(share)
        if surplus:
            self._release(surplus)
        return [taker for taker in waiting if taker.is_waiting]

    def _on_caller_cancelled(self, reply: asyncio.Future[list[Delivery] | FoqsError | None]) -> None:
        """Its caller has gone: what it was given just then is nobody's."""
        if reply.done() and not reply.cancelled() and reply.exception() is None:
            answer = reply.result()
            if answer and not isinstance(answer, FoqsError):
                self._release(answer)


def distribute(deliveries: Sequence[Delivery], wanted: Sequence[Wants]) -> tuple[list[list[Delivery]], list[Delivery]]:
    """(for each caller what it gets, what is left over): the first callers first, none more than it wants of a topic."""
    shares: list[list[Delivery]] = [[] for _ in wanted]
    left: dict[str, list[int]] = {}
    first: dict[str, int] = {}
    surplus = []
    for delivery in deliveries:
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


def _size_of_wants(wants: Wants) -> CallSize | None:
    """Of what is wanted; None of much, and of what a host will refuse."""
    entries = 0
    for count in wants.values():
        if type(count) is not int or count < 1:
            return None
        entries += count
    return (entries, 0, ()) if 0 < entries <= ENTRIES_PER_CALLER_MAX else None
