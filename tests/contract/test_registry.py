"""Tests of every registry: versions, sessions, entries that vanish with them, and notifications of changes."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Iterator

import pytest

from shardmgr.registry.port import (
    DOCUMENT_BYTES_MAX,
    ConnectionState,
    Registry,
    RegistryConflict,
    RegistryFailed,
    RegistryOutcomeUnknown,
    VersionedDocument,
)
from tests.support import containers
from tests.support.poll import eventually
from tests.support.registries import (
    LONG_MS,
    SHORT_MS,
    LocalBench,
    RegistryBench,
    ZooKeeperBench,
    boot_ms,
    wait_for_condition,
)
from tests.support.zookeeper import ZooKeeper, ensemble

_fresh = itertools.count(1)


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[ZooKeeper]:
    with containers.ZooKeeper() if containers.are_wanted() else ZooKeeper() as server:
        yield server


@pytest.fixture(scope="module")
def follower() -> Iterator[ZooKeeper]:
    """A server of an ensemble of three."""
    with ensemble() as servers:
        yield servers[1]


@pytest.fixture(
    params=["local", *(pytest.param(kind, marks=pytest.mark.zookeeper) for kind in ("zookeeper", "follower"))]
)
def bench(request: pytest.FixtureRequest) -> Iterator[RegistryBench]:
    if request.param == "local":
        yield LocalBench()
        return
    bench = ZooKeeperBench(request.getfixturevalue(request.param), f"/foqs/test-{next(_fresh)}")
    yield bench
    bench.remove()


async def next_change(registry: Registry) -> asyncio.Event:
    """Return an event that the next change sets. Earlier changes have been notified before."""
    event = asyncio.Event()
    registry.subscribe(event.set)
    for _ in range(3):
        await asyncio.sleep(0)
    event.clear()
    return event


# ------------------------------------------------------------------- documents


def test_a_document_is_read_as_it_was_written_with_versions_that_go_up_by_one(bench: RegistryBench) -> None:
    async def story() -> None:
        registry, other = await bench.open_registry(), await bench.open_registry()
        assert await registry.read("plan") is None
        versions = [await registry.replace("plan", b"first", None)]
        versions.append(await registry.replace("plan", bytes(range(256)), versions[-1]))
        versions.append(await registry.replace("plan", b"", versions[-1]))
        assert versions == [versions[0], versions[0] + 1, versions[0] + 2]
        assert await registry.read("plan") == VersionedDocument(b"", versions[-1])
        await registry.replace("plan", bytes(range(256)), versions[-1])
        await wait_for_condition(other, lambda: _has(other, "plan", bytes(range(256))))

    bench.run(story())


async def _has(registry: Registry, name: str, data: bytes) -> bool:
    entry = await registry.read(name)
    return entry is not None and entry.data == data


def test_document_is_replaced_only_by_a_writer_that_has_seen_it(bench: RegistryBench) -> None:
    async def story() -> None:
        registry = await bench.open_registry()
        with pytest.raises(RegistryConflict):
            await registry.replace("plan", b"?", 0)
        version = await registry.replace("plan", b"1", None)
        for wrong in (None, -1, version - 1, version + 1):
            with pytest.raises(RegistryConflict, match="plan"):
                await registry.replace("plan", b"?", wrong)
        assert await registry.read("plan") == VersionedDocument(b"1", version)

    bench.run(story())


def test_one_of_many_concurrent_writers_succeeds(bench: RegistryBench) -> None:
    async def story() -> None:
        registries = [await bench.open_registry() for _ in range(3)]
        for version in (None, 0, 1):
            attempts = [registry.replace("a/b/plan", b"%d" % n, version) for n, registry in enumerate(registries * 3)]
            outcomes = await asyncio.gather(*attempts, return_exceptions=True)
            assert sorted(type(outcome).__name__ for outcome in outcomes) == ["RegistryConflict"] * 8 + ["int"]

    bench.run(story())


def test_document_and_its_children_are_independent(bench: RegistryBench) -> None:
    async def story() -> None:
        registry = await bench.open_registry()
        await registry.replace("planner/notes", b"below", None)
        await registry.announce("planner", "leader", b"me")
        assert await registry.members("planner") == {"leader": b"me"}
        assert await registry.read("planner/leader") is None

    bench.run(story())


def test_document_is_removed_only_in_the_version_that_the_caller_has_seen(bench: RegistryBench) -> None:
    async def story() -> None:
        registry, other = await bench.open_registry(), await bench.open_registry()
        version = await registry.replace("hosts/a", b"1", None)
        version = await registry.replace("hosts/a", b"2", version)
        for wrong in (-1, version - 1, version + 1):
            with pytest.raises(RegistryConflict, match="hosts/a"):
                await registry.remove("hosts/a", wrong)
        assert await registry.read("hosts/a") == VersionedDocument(b"2", version)
        changed = await next_change(registry)
        await other.remove("hosts/a", version)
        await changed.wait()
        assert await registry.read("hosts/a") is None
        for action in (registry.remove("hosts/a", version), registry.replace("hosts/a", b"3", version)):
            with pytest.raises(RegistryConflict, match="hosts/a"):
                await action
        assert await registry.replace("hosts/a", b"3", None) == 0
        assert await other.read("hosts/a") == VersionedDocument(b"3", 0)

    bench.run(story())


def test_names_are_those_of_the_documents_and_entries_of_a_folder(bench: RegistryBench) -> None:
    async def story() -> None:
        registry, other = await bench.open_registry(), await bench.open_registry()
        assert await registry.names("hosts") == ()
        for name in ("hosts/b", "hosts/a", "hosts/a/below", "host", "hosts-2/c"):
            await registry.replace(name, b"", None)
        await other.announce("hosts", "member", b"")
        assert sorted(await registry.names("hosts")) == ["a", "b", "member"]
        await other.remove("hosts/b", 0)
        assert sorted(await registry.names("hosts")) == ["a", "member"]

    bench.run(story())


def test_a_large_document_is_kept_and_a_larger_one_refused(bench: RegistryBench) -> None:
    async def story() -> None:
        registry = await bench.open_registry()
        data = b"x" * DOCUMENT_BYTES_MAX
        await registry.replace("plan", data, None)
        assert (await registry.read("plan")) == VersionedDocument(data, 0)
        with pytest.raises(RegistryFailed, match=r"1000001 bytes.*at most 1000000"):
            await registry.replace("plan", data + b"x", 0)
        with pytest.raises(RegistryFailed, match="1000001 bytes"):
            await registry.announce("members", "a", data + b"x")
        assert registry.connection_state is ConnectionState.CONNECTED

    bench.run(story())


@pytest.mark.parametrize("name", ["", "/a", "a/", "a//b", ".", "a/../b", "a b", "ä", "a\0", "a\n", "x" * 201])
def test_invalid_name_is_refused(bench: RegistryBench, name: str) -> None:
    async def story() -> None:
        registry = bench.registry()
        for call in (
            registry.read(name),
            registry.replace(name, b"", None),
            registry.members(name),
            registry.announce("members", name, b""),
            registry.announce(name, "a", b""),
            registry.withdraw("members", name),
        ):
            with pytest.raises(ValueError, match="name"):
                await call

    bench.run(story())


def test_name_of_a_member_is_a_single_path_part(bench: RegistryBench) -> None:
    async def story() -> None:
        with pytest.raises(ValueError, match="has a /"):
            await bench.registry().announce("members", "a/b", b"")

    bench.run(story())


# --------------------------------------------------------------------- members


def test_announcement_is_seen_by_all_until_it_is_withdrawn(bench: RegistryBench) -> None:
    async def story() -> None:
        registry, other = await bench.open_registry(), await bench.open_registry()
        assert await other.members("members") == {}
        await registry.withdraw("members", "a")
        await registry.announce("members", "a", b"1")
        await other.announce("members", "b", b"2")
        await registry.announce("members", "a", b"3")
        await wait_for_condition(other, lambda: _members_are(other, {"a": b"3", "b": b"2"}))
        await registry.withdraw("members", "a")
        await registry.withdraw("members", "a")
        await wait_for_condition(other, lambda: _members_are(other, {"b": b"2"}))

    bench.run(story())


async def _members_are(registry: Registry, members: dict[str, bytes]) -> bool:
    return await registry.members("members") == members


def test_name_announced_by_another_session_is_neither_replaced_nor_withdrawn(bench: RegistryBench) -> None:
    async def story() -> None:
        registry, other = await bench.open_registry(), await bench.open_registry()
        await registry.announce("members", "a", b"1")
        with pytest.raises(RegistryConflict, match="members/a"):
            await other.announce("members", "a", b"2")
        await other.withdraw("members", "a")
        assert await registry.members("members") == {"a": b"1"}

    bench.run(story())


def test_announcements_are_gone_when_close_returns(bench: RegistryBench) -> None:
    async def story() -> None:
        registry, other = await bench.open_registry(), await bench.open_registry()
        await registry.announce("members", "a", b"1")
        await registry.close()
        await registry.close()
        # The name is free again.
        await other.announce("members", "a", b"2")
        assert await other.members("members") == {"a": b"2"}

    bench.run(story())


def test_calls_before_open_and_after_close_fail(bench: RegistryBench) -> None:
    async def story() -> None:
        registry = bench.registry()
        for _ in range(2):
            assert registry.connection_state is ConnectionState.LOST
            for call in (
                registry.read("plan"),
                registry.replace("plan", b"", None),
                registry.members("members"),
                registry.announce("members", "a", b""),
                registry.withdraw("members", "a"),
            ):
                with pytest.raises(RegistryFailed, match="not open"):
                    await call
            if not registry.session_number:
                await registry.open()
                with pytest.raises(RegistryFailed, match="opened before"):
                    await registry.open()
            await registry.close()
        with pytest.raises(RegistryFailed, match="opened before"):
            await registry.open()

    bench.run(story())


# --------------------------------------------------------------------- changes


def test_every_change_to_a_read_value_is_notified(bench: RegistryBench) -> None:
    async def story() -> None:
        reader, writer = await bench.open_registry(), await bench.open_registry()

        for change in (
            lambda: writer.replace("plan", b"1", None),
            lambda: writer.replace("plan", b"2", 0),
            lambda: writer.announce("members", "a", b"1"),
            lambda: writer.announce("members", "a", b"2"),
            lambda: writer.withdraw("members", "a"),
            lambda: reader.announce("members", "b", b"1"),
            lambda: writer.announce("members", "a", b"1"),
            lambda: writer.close(),
        ):
            await reader.read("plan")
            await reader.members("members")
            event = await next_change(reader)
            await change()
            await event.wait()

    bench.run(story())


def test_read_returns_nothing_older_than_the_call(bench: RegistryBench) -> None:
    """The values were read before, and change during the reads."""

    async def story() -> None:
        writer, *readers = [await bench.open_registry() for _ in range(3)]
        written = {"plan": 0, "a": 0}
        compared: set[int] = set()

        async def write() -> None:
            version: int | None = None
            enough_s = asyncio.get_running_loop().time() + 30.0
            for number in range(300):
                version = await replaced(writer, b"%d" % number, version)
                written["plan"] = number
                await announced(writer, b"%d" % number)
                written["a"] = number
                await asyncio.sleep(0)  # a local registry never waits, and the readers need their turns
                if asyncio.get_running_loop().time() > enough_s:
                    break
            written["plan"] = written["a"] = -1

        async def read(reader: Registry) -> None:
            while (least := dict(written))["a"] >= 0:
                try:
                    entry, found = await asyncio.gather(reader.read("plan"), reader.members("members"))
                except RegistryFailed:  # the machine stalls: nothing was read
                    await wait_for_condition(reader, lambda: reader.connection_state is ConnectionState.CONNECTED)
                    continue
                assert int(entry.data if entry else b"0") >= least["plan"]
                assert int(found.get("a", b"0")) >= least["a"]
                compared.add(least["plan"])

        await asyncio.gather(write(), *(read(reader) for reader in readers for _ in range(2)))
        assert len(compared) > 9

    bench.run(story())


async def replaced(registry: Registry, data: bytes, version: int | None) -> int:
    """Replace `plan`, which has no other writer, until it succeeds. Return its version."""
    with contextlib.suppress(RegistryFailed, RegistryOutcomeUnknown):
        return await registry.replace("plan", data, version)
    while True:
        await wait_for_condition(registry, lambda: registry.connection_state is ConnectionState.CONNECTED)
        with contextlib.suppress(RegistryFailed, RegistryOutcomeUnknown, RegistryConflict):
            entry = await registry.read("plan")
            return await registry.replace("plan", data, None if entry is None else entry.version)


async def announced(registry: Registry, data: bytes) -> None:
    """Announce `members/a` until it succeeds."""
    while True:
        with contextlib.suppress(RegistryFailed, RegistryOutcomeUnknown):
            return await registry.announce("members", "a", data)
        await wait_for_condition(registry, lambda: registry.connection_state is ConnectionState.CONNECTED)


# -------------------------------------------------------------------- sessions


def test_members_vanish_with_their_session_and_another_session_starts(bench: RegistryBench) -> None:
    async def story() -> None:
        registry, other = await bench.open_registry(), await bench.open_registry()
        assert (registry.session_number, registry.connection_state) == (1, ConnectionState.CONNECTED)
        seen: list[tuple[ConnectionState, int]] = []
        registry.subscribe(lambda: seen.append((registry.connection_state, registry.session_number)))
        await registry.announce("members", "a", b"1")
        await other.announce("members", "b", b"2")
        await bench.expire(registry)
        await wait_for_condition(
            registry, lambda: registry.session_number == 2 and registry.connection_state is ConnectionState.CONNECTED
        )
        await wait_for_condition(other, lambda: _members_are(other, {"b": b"2"}))
        await registry.announce("members", "a", b"3")
        assert dict(await registry.members("members")) == {"a": b"3", "b": b"2"}
        assert (ConnectionState.LOST, 1) in seen

    bench.run(story())


def test_disconnected_user_is_suspended_and_continues_its_session_after_a_reconnect(bench: RegistryBench) -> None:
    async def story() -> None:
        registry, other = await bench.open_registry(), await bench.open_registry()
        await registry.announce("members", "a", b"1")
        bench.disconnect(registry)
        await wait_for_condition(registry, lambda: registry.connection_state is ConnectionState.SUSPENDED)
        for call in (
            registry.read("plan"),
            registry.replace("plan", b"", None),
            registry.announce("members", "a", b""),
        ):
            with pytest.raises(RegistryFailed, match="suspended"):
                await call
        event = await next_change(registry)
        bench.reconnect(registry)
        await event.wait()
        await wait_for_condition(registry, lambda: registry.connection_state is ConnectionState.CONNECTED)
        assert registry.session_number == 1
        assert await other.members("members") == {"a": b"1"}
        await registry.announce("members", "a", b"2")

    bench.run(story())


def test_change_during_a_disconnect_is_notified_after_the_reconnect(bench: RegistryBench) -> None:
    async def story() -> None:
        registry, other = await bench.open_registry(), await bench.open_registry()
        await registry.read("plan")
        bench.disconnect(registry)
        await wait_for_condition(registry, lambda: registry.connection_state is ConnectionState.SUSPENDED)
        await other.replace("plan", b"1", None)
        bench.reconnect(registry)
        await wait_for_condition(registry, lambda: _has(registry, "plan", b"1"))

    bench.run(story())


def test_user_that_is_disconnected_too_long_knows_it_before_others(bench: RegistryBench) -> None:
    async def story() -> None:
        registry, other = await bench.open_registry(SHORT_MS), await bench.open_registry()
        while True:
            await wait_for_condition(registry, lambda: _announced(registry, "a"))
            session = registry.session_number
            bench.disconnect(registry)
            await wait_for_condition(other, lambda: _members_are(other, {}))
            gone_ms = boot_ms()
            if registry.session_number == session:
                break
            bench.reconnect(registry)  # the machine stood still, and another session had begun before the disconnect
        assert registry.alive_until_ms <= gone_ms
        await wait_for_condition(registry, lambda: registry.connection_state is ConnectionState.LOST)
        bench.reconnect(registry)
        await wait_for_condition(
            registry,
            lambda: registry.session_number > session and registry.connection_state is ConnectionState.CONNECTED,
        )
        await wait_for_condition(registry, lambda: _announced(registry, "a"))

    bench.run(story())


async def _announced(registry: Registry, name: str) -> bool:
    with contextlib.suppress(RegistryOutcomeUnknown):
        await registry.announce("members", name, b"1")
        return True
    return False


def test_end_of_a_session_moves_on_with_each_reply_of_the_server(bench: RegistryBench) -> None:
    async def story() -> None:
        registry = await bench.open_registry(SHORT_MS)
        assert 0 < registry.alive_until_ms <= boot_ms() + SHORT_MS
        first_ms = registry.alive_until_ms

        async def moved_on() -> bool:
            assert registry.alive_until_ms <= boot_ms() + SHORT_MS
            return registry.alive_until_ms >= first_ms + SHORT_MS

        await eventually(moved_on, "the session is answered")

    bench.run(story())


def test_cancelled_call_leaves_the_registry_unchanged(bench: RegistryBench) -> None:
    async def story() -> None:
        registry = await bench.open_registry(LONG_MS)
        for number in range(20):
            task = asyncio.create_task(registry.announce("members", f"m{number}", b"1"))
            for _ in range(number % 5):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await registry.announce("members", "m0", b"2")
        assert (await registry.members("members"))["m0"] == b"2"

    bench.run(story())
