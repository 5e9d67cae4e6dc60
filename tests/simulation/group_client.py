"""A client of a simulated run whose items have groups.

Holds `GroupClient`. It uses the same keys in several groups, repeats enqueues within the key window, enqueues some items of
a group atomically, delivers, returns, extends, moves, redrives, cancels and purges them. No other client uses its topics.
Always true: each payload is unique, and its items have no delay and no TTL and are not updated, so that a history can show
a move as in `mover`. Does not judge.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import Any, Final

from foqs_client import Delivery, FoqsError, Item, Nack
from tests.simulation.simulated_client import SimulatedClient
from tests.support.recording_client import RecordingClient

FIRST: Final = "grouped"
"""The topic in which its items are enqueued."""
NEXT: Final = "grouped next"
"""The topic to which they move."""
GROUPED_TOPICS: Final = (FIRST, NEXT)
LIMITS: Final = {FIRST: 1, NEXT: 2}
"""How many items of one group may be leased at once, in runs with limits."""
_GROUPS: Final = ("anna", "bert", "cäsar", "dora", "d" * 255)
_KEPT_S: Final = 3.0
"""How long an item with a key is repeated: less than the key window."""
_KNOWN_MAX: Final = 40


class GroupClient(SimulatedClient):
    """Works with the groups of one namespace."""

    def __init__(self, client: RecordingClient, rng: Random, call: Callable[[Awaitable[Any]], Awaitable[Any]]) -> None:
        super().__init__(client, rng, call)
        self._keyed: list[tuple[float, Item]] = []
        """When an item with a key was enqueued first."""
        self._known: dict[str, Item] = {}
        """Items in `FIRST` without keys by id, also some that are gone."""
        self._in_flight: set[asyncio.Task[None]] = set()

    async def work(self, is_over: Callable[[], bool]) -> None:
        """Enqueue, repeat, deliver, settle, redrive and move until the work is over."""
        rng = self._rng
        steps = (
            self._enqueue,
            self._repeat,
            self._enqueue_atomically,
            self._consume,
            self._consume_runs,
            self._hold,
            self._extend_late,
            self._redrive,
            self._move,
            self._cancel,
            self._purge,
        )
        while not is_over():
            [step] = rng.choices(steps, (30, 12, 8, 30, 12, 3, 2, 5, 5, 4, 2))
            self._start(step())
            await asyncio.sleep(rng.expovariate(25))
        await asyncio.gather(*self._in_flight)
        await self._client.client.close()

    def _start(self, step: Awaitable[None]) -> None:
        task = asyncio.ensure_future(self._try(step))
        self._in_flight.add(task)
        task.add_done_callback(self._in_flight.discard)

    async def _try(self, step: Awaitable[None]) -> None:
        with suppress(FoqsError):
            await step

    def _timeout_ms(self) -> int:
        return self._rng.choice((50, 500, 3_000))

    # ---------------------------------------------------------------- enqueues

    async def _enqueue(self) -> None:
        """Enqueue some items, of which two may share a key in different groups."""
        rng = self._rng
        if rng.random() < 0.2:
            await self._call(self._client.enqueue([self._new_item(rng.choice(_GROUPS), None, NEXT) for _ in range(4)]))
            return
        groups = rng.sample(_GROUPS, rng.randint(1, 3))
        key = f"order {self._number}" if rng.random() < 0.6 else None
        items = [self._new_item(group, key) for group in groups]
        if rng.random() < 0.3:
            items.append(self._new_item(rng.choice((*groups, None)), None))
        if key is not None:
            now_s = asyncio.get_running_loop().time()
            self._keyed += [(now_s, item) for item in items if item.idempotency_key is not None]
        results = await self._call(self._client.enqueue(items, timeout_ms=self._timeout_ms()))
        # Of a moved item with a key, a history could not tell its own enqueue from a repeat of unknown outcome.
        self._known |= {
            result.id: item
            for result, item in zip(results, items, strict=True)
            if result.id and item.idempotency_key is None
        }
        self._known = dict(list(self._known.items())[-_KNOWN_MAX:])

    async def _repeat(self) -> None:
        since_s = asyncio.get_running_loop().time() - _KEPT_S
        self._keyed = [(at_s, item) for at_s, item in self._keyed if at_s > since_s]
        if self._keyed:
            _, item = self._rng.choice(self._keyed)
            await self._call(self._client.enqueue([item], timeout_ms=self._timeout_ms()))

    async def _enqueue_atomically(self) -> None:
        group = self._rng.choice(_GROUPS)
        key = f"atomic order {self._number}" if self._rng.random() < 0.5 else None
        # A purge of the other topic may delete some of them before anything shows that they existed.
        items = [self._new_item(group, None, NEXT) for _ in range(self._rng.randint(0, 4))]
        items.append(self._new_item(group, key, NEXT))
        await self._call(self._client.enqueue(items, atomic=True, timeout_ms=self._timeout_ms()))

    def _new_item(self, group: str | None, key: str | None, topic: str = FIRST, priority: int | None = None) -> Item:
        self._number += 1
        return Item(
            topic,
            f"grouped/{self._number}".encode(),
            self._rng.choice((0, 0, 0, 1, -3)) if priority is None else priority,
            lease_ms=self._rng.choice((60, 300, 900)),
            attempts_max=self._rng.choice((None, None, 3)),
            idempotency_key=key,
            group=group,
        )

    # -------------------------------------------------------------- deliveries

    async def _consume(self) -> None:
        rng = self._rng
        wants = {topic: rng.choice((1, 3, 8)) for topic in GROUPED_TOPICS}
        wait_ms = rng.choice((0, 30, 300))
        for delivery in await self._call(self._client.dequeue(wants, wait_ms=wait_ms, timeout_ms=1_000)):
            await self._settle(delivery)

    async def _consume_runs(self) -> None:
        """Handle runs in their order, one beside the other, and try to settle what is behind an item that has failed."""
        rng = self._rng
        wait_ms, lease_ms = rng.choice((0, 30, 300)), rng.choice((None, 900))
        wants, run_max = {FIRST: rng.choice((3, 8, 20))}, rng.choice((2, 4, 9))
        found = await self._call(
            self._client.dequeue(wants, wait_ms=wait_ms, lease_ms=lease_ms, run_max=run_max, timeout_ms=1_000)
        )
        runs: dict[str | None, list[Delivery]] = {}
        for delivery in found:
            runs.setdefault(delivery.group, []).append(delivery)
        await asyncio.gather(*[self._try(self._handle_run(run)) for run in runs.values()])

    async def _handle_run(self, run: list[Delivery]) -> None:
        rng, client = self._rng, self._client
        for place, delivery in enumerate(run):
            kind = rng.random()
            if kind < 0.65:
                await self._call(client.ack([delivery]))
            elif kind < 0.7:
                await self._call(client.nack([Nack(delivery.id, delivery.token, dead=True)]))
            elif kind < 0.75:
                return  # its lease ends
            else:
                if kind < 0.85:
                    delay_ms = rng.choice((None, 0, rng.randint(1, 500)))
                    await self._call(client.nack([Nack(delivery.id, delivery.token, delay_ms)]))
                elif kind < 0.95:
                    await self._call(client.release([delivery]))
                else:
                    await self._call(client.extend([delivery], lease_ms=0))
                behind = run[place + 1 :]
                if behind and rng.random() < 0.7:
                    settle = rng.choice((client.ack, client.extend, client.release))
                    await self._call(settle(behind))
                return

    async def _hold(self) -> None:
        """Hold what is there, and enqueue more of the same groups while a dequeue waits: it must not get what the limit forbids."""
        held = await self._call(self._client.dequeue({FIRST: 20}, wait_ms=0, lease_ms=900, timeout_ms=1_000))
        items = [self._new_item(group, None) for group in sorted({each.group for each in held if each.group})]
        waiting = asyncio.ensure_future(
            self._call(self._client.dequeue({FIRST: 1}, wait_ms=300, lease_ms=900, timeout_ms=1_000))
        )
        try:
            await asyncio.sleep(0.02)  # it waits by now
            if items:
                await self._call(self._client.enqueue(items, timeout_ms=self._timeout_ms()))
        finally:
            more = await waiting
        for delivery in [*held, *more]:
            await self._settle(delivery)

    async def _extend_late(self) -> None:
        """Extend leases that have ended, while others may have their permits: better items of the same groups are delivered."""
        rng = self._rng
        late = await self._call(self._client.dequeue({NEXT: 2}, wait_ms=30, lease_ms=60, timeout_ms=1_000))
        await asyncio.sleep(0.1)  # they have ended
        groups = sorted({each.group for each in late if each.group})
        if groups:
            items = [self._new_item(group, None, NEXT, priority=-4) for group in groups for _ in range(2)]
            await self._call(self._client.enqueue(items, timeout_ms=self._timeout_ms()))
        more = await self._call(self._client.dequeue({NEXT: 8}, wait_ms=30, lease_ms=900, timeout_ms=1_000))
        for delivery in late:
            with suppress(FoqsError):
                await self._call(self._client.extend([delivery], lease_ms=rng.choice((300, 900))))
        for delivery in more:
            await self._settle(delivery)

    async def _settle(self, delivery: Delivery) -> None:
        """Ack most deliveries; return, give up, extend or forget the others. An extension may come when the lease has ended."""
        rng, client = self._rng, self._client
        kind = rng.random()
        if kind < 0.6:
            await self._call(client.ack([delivery]))
        elif kind < 0.8:
            is_dead = rng.random() < 0.2
            delay_ms = None if is_dead else rng.choice((None, 0, rng.randint(1, 500)))
            await self._call(client.nack([Nack(delivery.id, delivery.token, delay_ms, dead=is_dead)]))
        elif kind < 0.9:
            await self._call(client.release([delivery]))
        elif kind < 0.95:
            await asyncio.sleep(rng.uniform(0.02, 1.2))
            await self._call(client.extend([delivery], lease_ms=rng.choice((300, 900))))

    # ----------------------------------------------------------------- changes

    async def _redrive(self) -> None:
        if self._known:
            await self._call(self._client.redrive(sorted(set(self._rng.choices(list(self._known), k=6)))))

    async def _move(self) -> None:
        if self._known:
            ids = sorted(set(self._rng.choices(list(self._known), k=4)))
            items = [self._known[id] for id in ids]
            await self._call(self._client.move(ids, items, NEXT, timeout_ms=self._timeout_ms()))

    async def _cancel(self) -> None:
        if self._known:
            await self._call(self._client.cancel(sorted(set(self._rng.choices(list(self._known), k=3)))))

    async def _purge(self) -> None:
        # An item whose move has an unknown outcome counts as one of both topics, so a history could not tell what a purge of
        # the other one must have deleted.
        await self._call(self._client.purge_topic(FIRST))
