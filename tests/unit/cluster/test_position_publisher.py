"""A host publishes the positions of its shards before they accept items, and keeps those of shards that it has given up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from foqs.cluster import position_publisher
from foqs.cluster.position_publisher import PositionPublisher
from foqs.core.limits.shard_positions import ALLOWANCE_MIN, ShardPositions
from foqs.store.mysql.replica_rows import ReplicaUnread
from foqs_contract.errors import Overloaded
from shardmgr.model import Layout, ShardSpec
from shardmgr.positions import ShardPosition, read_all_positions, read_positions, render_positions, write_positions
from shardmgr.primary import DatabaseServer, LossPolicy, Primary
from shardmgr.primary_changes import without_acker
from shardmgr.primary_document import change_primary, replace_primary
from shardmgr.registry.port import Registry, RegistryFailed
from tests.support.local_ensemble import LocalEnsemble
from tests.support.poll import eventually, soon
from tests.support.virtual_time import run_virtual
from tests.unit.core.limits.test_shard_positions import admit

ENTRY = Primary(
    3,
    "a",
    LossPolicy.ASYNC,
    {"b": "", "c": ""},
    servers={name: DatabaseServer(f"r-{name}", at) for at, name in enumerate("abc", 1)},
)


class PlainShard:
    """Has the part of an owned shard that is published."""

    def __init__(self, number: int, epoch: int) -> None:
        self.number, self.epoch, self.term = number, epoch, 3
        self.flush = self.inserted = 0
        self.positions: ShardPositions | None = ShardPositions(number, 0)

    def sample_positions(self, now_ms: int) -> None:
        assert self.positions is not None
        self.positions.sample(now_ms, self.flush, self.inserted)

    def publication(self, now_ms: int, servers: Sequence[str]) -> object:
        assert self.positions is not None
        self.sample_positions(now_ms)
        return self.positions.publication(now_ms, 0, servers)


class PlainReader:
    def __init__(self) -> None:
        self.rows: Mapping[int, tuple[int, int]] | None = None
        self.asked: list[tuple[int, Sequence[int]]] = []

    async def read(self, server_id: int, shards: Sequence[int]) -> Mapping[int, tuple[int, int]]:
        self.asked.append((server_id, shards))
        if self.rows is None:
            raise ReplicaUnread("it is away")
        return self.rows

    def close(self) -> None:
        pass


def publisher(
    registry: Registry,
    shards: Mapping[int, PlainShard],
    readers: Mapping[str, PlainReader],
    databases: Mapping[int, str] = {1: "main", 2: "main"},
) -> PositionPublisher:
    loop = asyncio.get_running_loop()
    layout = Layout({number: ShardSpec(number, database) for number, database in databases.items()})
    view = SimpleNamespace(layout=layout, members=[SimpleNamespace(name="host:1")])
    clock = SimpleNamespace(monotonic_ms=lambda: int(loop.time() * 1_000))
    return PositionPublisher(
        registry,
        "host:1",
        cast("Any", shards),
        lambda: cast("Any", view),
        {"main": readers},
        {"main": 60_000},
        cast("Any", clock),
    )


def test_shard_accepts_items_once_its_position_is_published_and_replicas_are_read() -> None:
    async def story() -> None:
        registry = LocalEnsemble(None, lambda: 0).registry(6_000)
        await registry.open()
        earlier = ShardPosition(2, "main", 4, 2, [(9, 90)], 1_090)
        await write_positions(
            registry, "host:1", render_positions([earlier, ShardPosition(1, "main", 4, 2, [(0, 0)], 1_000)]), None
        )
        shard = PlainShard(1, 5)
        shards = {1: shard}
        readers = {name: PlainReader() for name in "abc"}
        found = publisher(registry, shards, readers)
        task = asyncio.ensure_future(found.run())
        assert shard.positions is not None
        positions = shard.positions
        with pytest.raises(Overloaded):
            admit(positions, 1, 0)
        await replace_primary(registry, "main", ENTRY, None)
        await soon(lambda: positions.accepts_items(0))
        assert (await read_all_positions(registry))[0] == {
            1: ShardPosition(1, "main", 5, 3, [(0, 0)], ALLOWANCE_MIN),
            2: earlier,
        }
        shard.flush, shard.inserted = 3, 30
        readers["b"].rows = {1: (5, 3)}
        await soon(lambda: found.lags_ms().get(("main", "c"), 0) > 0)
        await soon(lambda: found.lags_ms()["main", "b"] == 0)
        assert readers["b"].asked[0] == (2, [1])
        assert not readers["a"].asked
        assert found.bounds_ms() == {"main": 60_000}
        readers["b"].rows = {1: (4, 700)}  # it was rebuilt, and has an earlier epoch
        await soon(lambda: found.lags_ms()["main", "b"] > 0)

        async def is_published() -> bool:
            return (await read_all_positions(registry))[0][1].points[-1] == (3, 30)

        await eventually(is_published, "the position is published")
        other = PlainShard(2, 3)
        del shards[1]
        shards[2] = other
        assert other.positions is not None
        await soon(lambda: other.positions is not None and other.positions.accepts_items(0))
        kept, _ = await read_all_positions(registry)
        assert kept[1].points[-1] == (3, 30)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(asyncio.wait_for(story(), 60))


def test_document_of_a_host_that_is_gone_is_removed_once_its_shards_are_published_by_this_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        registry = LocalEnsemble(None, lambda: 0).registry(6_000)
        await registry.open()
        await replace_primary(registry, "main", ENTRY, None)
        await write_positions(
            registry, "gone", render_positions([ShardPosition(1, "main", 4, 2, [(9, 90)], 1_090)]), None
        )
        found = publisher(registry, {1: PlainShard(1, 5)}, {"a": PlainReader()})
        task = asyncio.ensure_future(found.run())

        async def is_removed() -> bool:
            return (await read_positions(registry, "gone"))[1] is None

        await eventually(is_removed, "the document is removed")
        assert [*(await read_all_positions(registry))[0]] == [1]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    monkeypatch.setattr(position_publisher, "_CLEAN_S", 0.05)
    asyncio.run(asyncio.wait_for(story(), 60))


class Counting:
    """A registry that counts the reads of entries, and may be slow."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.reads = 0
        self.delay_s = 0.0

    def __getattr__(self, name: str) -> object:
        return getattr(self._registry, name)

    async def read(self, name: str) -> object:
        self.reads += name.startswith("primaries/")
        await asyncio.sleep(self.delay_s)
        return await self._registry.read(name)


def in_virtual_time(story: Callable[[Registry], Coroutine[Any, Any, None]]) -> None:
    async def play() -> None:
        registry = LocalEnsemble(None, lambda: 0).registry(6_000)
        await registry.open()
        await story(registry)

    run_virtual(play, until_s=600)


async def beginning_with(found: PositionPublisher, *shards: PlainShard) -> asyncio.Future[None]:
    """Start a publisher, and return its task once these shards accept items."""
    task = asyncio.ensure_future(found.run())
    for shard in shards:
        await soon(lambda shard=shard: shard.positions.accepts_items(0))  # type: ignore[misc]
    return task


def test_shard_goes_on_with_the_last_entry_that_could_be_read_and_this_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(registry: Registry) -> None:
        version = await replace_primary(registry, "main", ENTRY, None)
        shard = PlainShard(1, 5)
        found = publisher(registry, {1: shard}, {"b": PlainReader()})
        task = await beginning_with(found, shard)
        version = await registry.replace("primaries/main", b"?", version)
        assert shard.positions is not None
        for _ in range(100):
            await asyncio.sleep(1)
            admit(shard.positions, ALLOWANCE_MIN // 2, 0)
        assert found.bounds_ms() == {"main": 60_000}
        assert [record.levelname for record in caplog.records if "primaries/main" in record.message] == ["ERROR"]
        await replace_primary(registry, "main", replace(ENTRY, policy=LossPolicy.SEMI_SYNC), version)
        await soon(lambda: found.bounds_ms() == {})
        task.cancel()

    in_virtual_time(story)


def test_nothing_is_bounded_once_the_last_replica_of_an_async_database_is_removed() -> None:
    async def story(registry: Registry) -> None:
        await replace_primary(registry, "main", replace(ENTRY, ackers={"b": ""}), None)
        shard = PlainShard(1, 5)
        found = publisher(registry, {1: shard}, {"b": PlainReader()})
        task = await beginning_with(found, shard)
        shard.flush, shard.inserted = 3, 30
        positions = shard.positions
        assert positions is not None
        await asyncio.sleep(100)
        with pytest.raises(Overloaded, match="max_lag_ms is 60000"):
            admit(positions, 1, 100_000)
        await change_primary(registry, "main", lambda entry: without_acker(entry, "b"))
        await asyncio.sleep(2)
        admit(positions, 1, 102_000)
        task.cancel()

    in_virtual_time(story)


def test_idle_shard_accepts_items_although_the_registry_is_silent_for_longer_than_the_bound() -> None:
    async def story(registry: Registry) -> None:
        slow = Counting(registry)
        await replace_primary(registry, "main", ENTRY, None)
        shard = PlainShard(1, 5)
        found = publisher(slow, {1: shard}, {"b": PlainReader()})  # type: ignore[arg-type]
        task = await beginning_with(found, shard)
        slow.delay_s = 300
        for _ in range(10):
            await asyncio.sleep(20)
            assert shard.positions is not None
            admit(shard.positions, 1, int(asyncio.get_running_loop().time() * 1_000))
        task.cancel()

    in_virtual_time(story)


def test_registry_that_refuses_a_publication_is_asked_once_a_second() -> None:
    class Refusing(Counting):
        tries = 0

        async def replace(self, name: str, data: bytes, version: int | None) -> int:
            self.tries += name.startswith("positions/")
            raise RegistryFailed("the document is too large")

    async def story(registry: Registry) -> None:
        await replace_primary(registry, "main", ENTRY, None)
        refusing = Refusing(registry)
        found = publisher(refusing, {1: PlainShard(1, 5)}, {"b": PlainReader()})  # type: ignore[arg-type]
        task = asyncio.ensure_future(found.run())
        await asyncio.sleep(20)
        assert 15 <= refusing.tries <= 20
        task.cancel()

    in_virtual_time(story)


def test_shards_that_cannot_be_published_are_tried_once_a_second_and_stop_no_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(registry: Registry) -> None:
        counting = Counting(registry)
        await replace_primary(registry, "main", ENTRY, None)
        await registry.replace("primaries/other", b"?", None)
        shards = {number: PlainShard(number, 5) for number in (1, 2, 3)}
        # The shard 2 has no place in the document, and the entry of the shard 3 was never read.
        found = publisher(counting, shards, {"b": PlainReader()}, {1: "main", 2: "main", 3: "other"})  # type: ignore[arg-type]
        task = await beginning_with(found, shards[1])
        before = counting.reads
        await asyncio.sleep(20)
        assert counting.reads - before <= 2 * 21
        for number in (2, 3):
            positions = shards[number].positions
            assert positions is not None
            assert not positions.accepts_items(0)
        assert "shard 2 accepts no new items: a host publishes at most 1 positions" in caplog.text
        assert "so its shards accept no new items until you correct it: primaries/other" in caplog.text
        task.cancel()

    monkeypatch.setattr(position_publisher, "SHARDS_MAX", 1)
    in_virtual_time(story)


def test_damaged_document_of_the_host_itself_is_kept_aside_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def story(registry: Registry) -> None:
        await replace_primary(registry, "main", ENTRY, None)
        await registry.replace("positions/host.3a1", b'{"format":2}', None)
        shard = PlainShard(1, 5)
        task = await beginning_with(publisher(registry, {1: shard}, {"b": PlainReader()}), shard)
        found, problems = await read_all_positions(registry)
        assert [*found] == [1]
        assert [problem.partition(": ")[0] for problem in problems] == ["positions/host.3a1..damaged"]
        copy = await registry.read("positions/host.3a1..damaged")
        assert copy is not None
        assert copy.data == b'{"format":2}'
        [said] = [record.message for record in caplog.records if "cannot be read" in record.message]
        assert "A copy is kept as positions/host.3a1..damaged: until you remove it" in said
        task.cancel()

    in_virtual_time(story)


def test_two_hosts_of_one_name_do_not_put_back_what_the_other_one_has_published() -> None:
    async def story(registry: Registry) -> None:
        await replace_primary(registry, "main", ENTRY, None)
        shards = {number: PlainShard(number, 5) for number in (1, 2)}
        tasks = [
            await beginning_with(publisher(registry, {number: shard}, {"b": PlainReader()}), shard)
            for number, shard in shards.items()
        ]
        before: dict[int, tuple[int, int]] = {}
        for second in range(1, 20):
            for shard in shards.values():
                shard.flush = shard.inserted = second
            await asyncio.sleep(1.7)
            now = {number: each.last for number, each in (await read_all_positions(registry))[0].items()}
            assert all(now[number] >= before.get(number, (0, 0)) for number in (1, 2))
            before = now
        assert min(before.values()) >= (5, 15)
        for task in tasks:
            task.cancel()

    in_virtual_time(story)
