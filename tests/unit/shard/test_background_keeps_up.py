"""What a shard removes in the background keeps up with flushes that are full of what arrives.

Each story fills every flush with new rows that end a second later, for longer than a worker can be
behind, and looks at what has ended and is still there. A worker that is slower than the arrivals
leaves more with each flush.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Final

import pytest

from foqs.core.items.item import Row, State
from foqs.core.items.life import EventKind
from foqs.core.memory import topic_table
from foqs.queue.engine import Engine, EngineSettings
from foqs.shard import writer
from foqs.shard.shard_constants import ShardConstants
from tests.support.builders import engine_settings, keyed_item, new_item
from tests.support.engines import Caller, World
from tests.support.method_gate import start_task
from tests.support.purges import purge
from tests.support.virtual_time import run_virtual

LIFE_MS: Final = 1_000
RUN_S: Final = 15.0
BEHIND_S_MAX: Final = 2.0
"""How far a worker may be behind: keys that end within a second are deleted together."""
CALL_ITEMS: Final = 50
FLUSH_ITEMS: Final = 200
SCALE: Final = FLUSH_ITEMS / ShardConstants().flush_items_max


@pytest.fixture(autouse=True)
def pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scale the pages with the flushes."""
    monkeypatch.setattr(writer, "KEYS_EXPIRED_PER_FLUSH", int(writer.KEYS_EXPIRED_PER_FLUSH * SCALE))
    monkeypatch.setattr(topic_table, "TOPICS_REMOVED_PER_FLUSH", int(topic_table.TOPICS_REMOVED_PER_FLUSH * SCALE))


def scaled_settings() -> EngineSettings:
    """Return the settings of one shard with small flushes and the proportions of the usual constants.

    Topics linger for `LIFE_MS`.
    """
    usual = ShardConstants()
    scaled: dict[str, Any] = {
        name: int(getattr(usual, name) * SCALE) for name in ("flush_items_max", "timer_page_items", "purge_page_items")
    }
    return engine_settings(
        1,
        **scaled,
        flush_items_min=FLUSH_ITEMS,
        ready_index_items_max=100_000,
        empty_topic_linger_ms=LIFE_MS,
        sweep_interval_ms=LIFE_MS,
    )


class Flood:
    """A world whose flushes are always full of one kind of call.

    Attributes:
        items: what the calls have enqueued.
        most_left: the highest number of things that had ended and were still there.
    """

    def __init__(self, world: World, engine: Engine) -> None:
        self.world = world
        self.shard = engine.shards[1]
        self.table = world.database.tables[1]
        self.caller = Caller(world, engine)
        self.items = 0
        self.most_left = 0
        self._is_ended = False

    async def run(
        self, call: Callable[[int], Coroutine[Any, Any, Any]], left: Callable[[], int], callers: int = 10
    ) -> None:
        """Call without a pause for `RUN_S`, with calls that each enqueue `CALL_ITEMS`."""
        tasks = [start_task(self._repeat(call)) for _ in range(callers)]
        for _ in range(int(RUN_S * 10)):
            await self.world.pass_s(0.1)
            self.most_left = max(self.most_left, left())
        self._is_ended = True
        await asyncio.gather(*tasks)

    async def _repeat(self, call: Callable[[int], Coroutine[Any, Any, Any]]) -> None:
        while not self._is_ended:
            self.items += CALL_ITEMS
            await call(self.items // CALL_ITEMS)

    def check(self, behind_s_max: float = BEHIND_S_MAX) -> None:
        """Check that no more was left than what arrives while a worker is behind."""
        arrived = self.items / RUN_S * behind_s_max
        assert self.items > 40 * FLUSH_ITEMS, "the flushes were not full"
        assert self.most_left <= arrived, f"{self.most_left} are left of {self.items}"

    def rows(self, is_left: Callable[[Row, int], bool]) -> Callable[[], int]:
        """Return a function that counts rows, by the time of the shard."""
        return lambda: sum(is_left(row, self.shard.now_ms()) for row in self.table.rows.values())


def run_flood(story: Callable[[Flood], Coroutine[Any, Any, None]]) -> None:
    """Run a story with a database whose round trips take 10 ms."""

    async def main() -> None:
        world = World(latency_ms=10)
        engine = await world.counted_engine(scaled_settings())
        policies = engine.namespaces.retry_policies
        policies["default"] = replace(policies["default"], key_window_ms=LIFE_MS, dead_retention_ms=LIFE_MS)
        await story(Flood(world, engine))

    run_virtual(main, until_s=1_000)


def test_rows_of_expired_keys_do_not_pile_up() -> None:
    async def story(flood: Flood) -> None:
        async def enqueue(number: int) -> None:
            await flood.caller.enqueue([keyed_item(f"{number}-{item}") for item in range(CALL_ITEMS)])

        keys = flood.table.idempotency_keys
        await flood.run(enqueue, lambda: sum(key.until_ms <= flood.shard.now_ms() for key in keys.values()))
        flood.check()

    run_flood(story)


def test_expired_items_do_not_pile_up() -> None:
    async def story(flood: Flood) -> None:
        items = [new_item(ttl_ms=LIFE_MS)] * CALL_ITEMS
        await flood.run(
            lambda _: flood.caller.enqueue(items),
            flood.rows(lambda row, now_ms: row.expires_at_ms is not None and row.expires_at_ms <= now_ms),
        )
        flood.check()

    run_flood(story)


def test_dead_items_do_not_pile_up_after_their_retention() -> None:
    async def story(flood: Flood) -> None:
        async def give_up(number: int) -> None:
            await flood.caller.put(f"{number}", CALL_ITEMS)
            got = (await flood.caller.get(f"{number}", CALL_ITEMS)).items
            await flood.caller.do(EventKind.NACK, got, dead=True)

        def is_left(row: Row, now_ms: int) -> bool:
            return row.state is State.DEAD and row.due_ms is not None and row.due_ms <= now_ms

        await flood.run(give_up, flood.rows(is_left), callers=30)
        flood.check()

    run_flood(story)


@pytest.mark.once
def test_ended_leases_do_not_pile_up() -> None:
    async def story(flood: Flood) -> None:
        async def lease(number: int) -> None:
            await flood.caller.put(f"{number}", CALL_ITEMS)
            await flood.caller.get(f"{number}", CALL_ITEMS, lease_ms=LIFE_MS)

        def is_left(row: Row, now_ms: int) -> bool:
            return row.state is State.LEASED and row.due_ms is not None and row.due_ms <= now_ms

        await flood.run(lease, flood.rows(is_left), callers=30)
        flood.check()

    run_flood(story)


def test_rows_of_purged_topics_do_not_pile_up() -> None:
    async def story(flood: Flood) -> None:
        async def purge_often() -> None:
            while True:
                await flood.world.pass_s(LIFE_MS / 1000)
                await purge(flood.caller)

        purging = start_task(purge_often())
        items = [new_item()] * CALL_ITEMS
        markers = flood.shard.memory.purge_markers
        await flood.run(lambda _: flood.caller.enqueue(items), flood.rows(lambda row, _: markers.covers(row)))
        purging.cancel()
        flood.check()

    run_flood(story)


def test_empty_topics_do_not_pile_up() -> None:
    async def story(flood: Flood) -> None:
        async def use_topics(number: int) -> None:
            names = [f"{number}-{item}" for item in range(CALL_ITEMS)]
            await flood.caller.enqueue([new_item(name) for name in names])
            got = (await flood.caller.dequeue([(name, 1) for name in names])).items
            await flood.caller.do(EventKind.ACK, got)

        await flood.run(use_topics, lambda: len(flood.table.topics) - len(flood.shard.counts), callers=30)
        flood.check(behind_s_max=LIFE_MS / 1000 + BEHIND_S_MAX)  # they linger

    run_flood(story)


def test_empty_topics_are_removed_while_no_call_comes() -> None:
    async def story(flood: Flood) -> None:
        for start in range(0, 2_000, 100):
            names = [f"{start + item}" for item in range(100)]
            await flood.caller.enqueue([new_item(name) for name in names])
            got = (await flood.caller.dequeue([(name, 1) for name in names])).items
            await flood.caller.do(EventKind.ACK, got)
        assert len(flood.table.topics) > 200
        await flood.world.until(lambda: not flood.table.topics, within_s=60)

    run_flood(story)
