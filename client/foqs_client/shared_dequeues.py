"""Coalesces dequeues that are made in one turn of the event loop.

Holds `SharedDequeues`. Always true: every delivered item is given to one caller, or
released. Callers are served in their order, none with more than it wants. Callers
without an item send again together, with the rest of their time, until a host has no
item. So each reply serves the caller that waits longest. When the last caller has left,
the call for them is cancelled. Knows nothing of connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

from foqs_client.coalescing import ENTRIES_PER_CALLER_MAX, MAYBE_CAUSED_BY_OTHERS, CallSize, Coalescer, Participant
from foqs_client.errors import FoqsError
from foqs_client.types import Deliveries, Delivery

Wants: TypeAlias = Mapping[str, int]
WaitingDequeue: TypeAlias = Participant[Wants, list[Delivery] | FoqsError]
SendDequeue: TypeAlias = Callable[[Wants, int, int], Awaitable[Deliveries]]
"""Dequeues from a host: (wants, milliseconds to wait, milliseconds of the call)."""


class SharedDequeues:
    """The coalesced dequeues of one client.

    Args:
        release: releases items that no caller wants any more.
    """

    def __init__(self, coalescer: Coalescer, release: Callable[[Sequence[Delivery]], None]) -> None:
        self._coalescer = coalescer
        self._release = release
        self._serving: dict[asyncio.Task[None], Sequence[WaitingDequeue]] = {}
        """The tasks that dequeue for several callers, and these callers."""

    async def dequeue(
        self, wants: Wants, wait_ms: int, lease_ms: int | None, timeout_ms: int, send: SendDequeue
    ) -> list[Delivery]:
        """Dequeue, coalesced with other calls for the same topics and times. Raises FoqsError."""
        size = _size_of_wants(wants)
        if size is None:
            return await send(wants, wait_ms, timeout_ms)
        kind = ("dequeue", tuple(wants), wait_ms, lease_ms, timeout_ms)
        reply: asyncio.Future[list[Delivery] | FoqsError | None]
        reply, led_call = self._coalescer.join(kind, wants, size)
        try:
            if led_call is None:
                result = await reply
            else:
                result = await self._coalescer.lead(led_call, partial(self._serve, wait_ms, timeout_ms, send))
        except asyncio.CancelledError:
            self._on_caller_cancelled(reply)
            raise
        if result is None:
            return await send(wants, wait_ms, timeout_ms)
        if isinstance(result, FoqsError):
            raise result
        return result

    async def _serve(self, wait_ms: int, timeout_ms: int, send: SendDequeue, waiting: Sequence[WaitingDequeue]) -> None:
        """Dequeue for all callers until each has its reply."""
        task = asyncio.current_task()
        assert task is not None, "the coalescer runs it as a task"
        self._serving[task] = waiting
        try:
            await self._serve_in_turn(wait_ms, timeout_ms, send, waiting)
        finally:
            del self._serving[task]

    async def _serve_in_turn(
        self, wait_ms: int, timeout_ms: int, send: SendDequeue, waiting: Sequence[WaitingDequeue]
    ) -> None:
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        left_wait_ms, left_ms = wait_ms, timeout_ms
        unavailable_shards = 0
        while waiting:
            wants = {topic: sum([dequeue.request[topic] for dequeue in waiting]) for topic in waiting[0].request}
            try:
                found = await send(wants, left_wait_ms, left_ms)
            except FoqsError as error:
                for dequeue in waiting:
                    # A copy for each caller, because raising an error changes it.
                    dequeue.set_reply(None if isinstance(error, MAYBE_CAUSED_BY_OTHERS) else error.with_shifted_index())
                return
            waiting = self._distribute(found, waiting)
            passed_ms = int((loop.time() - begun_s) * 1_000)
            left_wait_ms, left_ms = max(0, wait_ms - passed_ms), timeout_ms - passed_ms
            if not found or left_ms < 1:
                unavailable_shards = found.unavailable_shards
                break
        for dequeue in waiting:
            dequeue.set_reply(Deliveries((), unavailable_shards))

    def _distribute(
        self, deliveries: Sequence[Delivery], dequeues: Sequence[WaitingDequeue]
    ) -> Sequence[WaitingDequeue]:
        """Give items to callers, release the surplus, and return the callers that still wait."""
        waiting = [dequeue for dequeue in dequeues if dequeue.is_waiting]
        shares, surplus = distribute(deliveries, [dequeue.request for dequeue in waiting])
        for dequeue, share in zip(waiting, shares, strict=True):
            if share:
                dequeue.set_reply(share)
        if surplus:
            self._release(surplus)
        return [dequeue for dequeue in waiting if dequeue.is_waiting]

    def _on_caller_cancelled(self, reply: asyncio.Future[list[Delivery] | FoqsError | None]) -> None:
        """Release the items of a reply whose caller was cancelled. End the call if it was the last caller of it."""
        for task, callers in self._serving.items():
            if not any(caller.is_waiting for caller in callers):
                task.cancel()
        if reply.done() and not reply.cancelled() and reply.exception() is None:
            result = reply.result()
            if result and not isinstance(result, FoqsError):
                self._release(result)


def distribute(deliveries: Sequence[Delivery], wanted: Sequence[Wants]) -> tuple[list[list[Delivery]], list[Delivery]]:
    """Return (the items of each caller, the surplus). The first callers are served first, none with more than it wants."""
    shares: list[list[Delivery]] = [[] for _ in wanted]
    remaining: dict[str, list[int]] = {}
    first_caller: dict[str, int] = {}
    surplus = []
    for delivery in deliveries:
        topic = delivery.topic
        if topic not in remaining:
            remaining[topic] = [wants.get(topic, 0) for wants in wanted]
            first_caller[topic] = 0
        counts, place = remaining[topic], first_caller[topic]
        while place < len(counts) and not counts[place]:
            place += 1
        first_caller[topic] = place
        if place == len(counts):
            surplus.append(delivery)
        else:
            counts[place] -= 1
            shares[place].append(delivery)
    return shares, surplus


def _size_of_wants(wants: Wants) -> CallSize | None:
    """Return the size of a dequeue; None if it is large, or if a host would refuse it."""
    entries = 0
    for count in wants.values():
        if type(count) is not int or count < 1:
            return None
        entries += count
    return (entries, 0, ()) if 0 < entries <= ENTRIES_PER_CALLER_MAX else None
