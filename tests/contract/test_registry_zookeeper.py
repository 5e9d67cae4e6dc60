"""Tests of a registry whose server stops, restarts, freezes, refuses, or grants a shorter timeout."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient

from shardmgr.registry.port import (
    ConnectionState,
    Registry,
    RegistryConflict,
    RegistryFailed,
    RegistryOutcomeUnknown,
    VersionedDocument,
)
from shardmgr.registry.zookeeper_registry import ZooKeeperRegistry
from tests.support.aio import run
from tests.support.dropping_proxy import DroppingProxy, full_listener
from tests.support.ports import free_port
from tests.support.registries import (
    LONG_MS,
    SHORT_MS,
    ZooKeeperBench,
    boot_ms,
    kazoo_of,
    session_of,
    wait_for_condition,
)
from tests.support.zookeeper import SESSION_TIMEOUT_MS_MAX, TICK_MS, ZooKeeper, ensemble

pytestmark = pytest.mark.zookeeper

_fresh = itertools.count(1)


@pytest.fixture(scope="module", params=["alone", pytest.param("follower", marks=pytest.mark.long)])
def server(request: pytest.FixtureRequest) -> Iterator[ZooKeeper]:
    """A standalone server; in `make test-long` also a follower in an ensemble, which test_registry.py always uses."""
    if request.param == "alone":
        with ZooKeeper() as server:
            yield server
        return
    with ensemble() as servers:
        yield servers[1]


@pytest.fixture
def bench(server: ZooKeeper) -> Iterator[ZooKeeperBench]:
    bench = ZooKeeperBench(server, f"/foqs/test-{next(_fresh)}")
    yield bench
    bench.remove()


async def is_connected(registry: Registry, after: int = 0) -> None:
    await wait_for_condition(
        registry, lambda: registry.connection_state is ConnectionState.CONNECTED and registry.session_number > after
    )


async def announce(registry: Registry) -> int:
    """Announce `members/a`, however often the session changes meanwhile. Return the session that has it."""
    while True:
        await is_connected(registry)
        session = registry.session_number
        with contextlib.suppress(RegistryFailed, RegistryOutcomeUnknown):
            await registry.announce("members", "a", b"1")
            if registry.session_number == session:
                return session


# ---------------------------------------------------------------- the server


class StandingClock:
    """A boot-time clock that stands still for a while, so that a slow start of a server costs no time of a session."""

    def __init__(self) -> None:
        self._behind_ms = 0
        self._stands_at_ms: int | None = None

    def boot_ms(self) -> int:
        stands_at_ms = self._stands_at_ms  # other threads read it, too
        return boot_ms() - self._behind_ms if stands_at_ms is None else stands_at_ms

    @contextlib.contextmanager
    def standing(self) -> Iterator[None]:
        self._stands_at_ms = self.boot_ms()
        yield
        self._behind_ms = boot_ms() - self._stands_at_ms
        self._stands_at_ms = None


def test_a_server_that_is_started_again_finds_its_users_in_their_sessions(
    bench: ZooKeeperBench, server: ZooKeeper
) -> None:
    clock = StandingClock()

    def user() -> ZooKeeperRegistry:
        return ZooKeeperRegistry(
            server.hosts, bench.root, SESSION_TIMEOUT_MS_MAX, clock.boot_ms, None, 60_000, 60_000, TICK_MS
        )

    async def story() -> None:
        registry, other = user(), user()
        try:
            for each in (registry, other):
                await each.open()
            await registry.announce("members", "a", b"1")
            await registry.replace("plan", b"1", None)
            with clock.standing():
                await asyncio.to_thread(server.stop)
                try:
                    await wait_for_condition(registry, lambda: registry.connection_state is ConnectionState.SUSPENDED)
                finally:
                    await asyncio.to_thread(server.start)
                await is_connected(registry)
                await is_connected(other)
            assert (registry.session_number, other.session_number) == (1, 1)
            assert await other.members("members") == {"a": b"1"}
            version = await other.replace("plan", b"2", 0)
            assert await registry.read("plan") == VersionedDocument(b"2", version)
        finally:
            await asyncio.gather(registry.close(), other.close())

    run(story(), 120)


def test_server_that_ignores_a_reconnect_is_connected_again_in_the_same_session(
    bench: ZooKeeperBench,
) -> None:
    """ZooKeeper does so with connections that arrive while it starts; see ZOOKEEPER-5051."""

    async def story() -> None:
        registry = await bench.open_registry(SESSION_TIMEOUT_MS_MAX)
        await registry.announce("members", "a", b"1")
        bench.leave_hanging(registry, 2)
        await wait_for_condition(registry, lambda: registry.connection_state is ConnectionState.SUSPENDED)
        await is_connected(registry)
        assert (registry.session_number, bench.hanging(registry)) == (1, 0)
        assert await registry.members("members") == {"a": b"1"}

    bench.run(story())


def test_session_survives_the_loss_of_one_server_machine(server: ZooKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    # Without a shuffle the missing server is always tried first.
    monkeypatch.setattr("kazoo.protocol.connection.random.shuffle", lambda hosts: None)

    async def story(gone: int, proxy: DroppingProxy) -> None:
        registry = ZooKeeperRegistry(f"127.0.0.1:{gone},{proxy.hosts}", "/foqs/gone", LONG_MS, boot_ms, None, 60_000)
        await registry.open()
        try:
            proxy.leave_hanging(0)
            await wait_for_condition(registry, lambda: registry.connection_state is ConnectionState.SUSPENDED)
            await is_connected(registry)
            assert registry.session_number == 1
        finally:
            await registry.close()

    with full_listener() as gone, DroppingProxy(server.port) as proxy:
        run(story(gone, proxy))


def test_session_ends_if_its_server_is_away_for_longer_than_the_timeout(
    bench: ZooKeeperBench, server: ZooKeeper
) -> None:
    async def story() -> None:
        registry = await bench.open_registry(SHORT_MS)
        session = await announce(registry)
        await asyncio.to_thread(server.stop)
        try:
            await wait_for_condition(registry, lambda: registry.connection_state is ConnectionState.LOST)
            with pytest.raises(RegistryFailed, match="lost"):
                await registry.read("plan")
        finally:
            await asyncio.to_thread(server.start)
        await is_connected(registry, session)
        assert await registry.members("members") == {}
        await announce(registry)

    bench.run(story())


def test_write_at_a_frozen_server_has_an_unknown_outcome(bench: ZooKeeperBench, server: ZooKeeper) -> None:
    async def story() -> None:
        registry = await bench.open_registry()
        await registry.replace("plan", b"1", None)
        server.freeze()
        try:
            with pytest.raises(RegistryOutcomeUnknown, match="plan"):
                await registry.replace("plan", b"2", 0)
            await wait_for_condition(registry, lambda: registry.connection_state is ConnectionState.SUSPENDED)
        finally:
            server.thaw()
        await is_connected(registry)
        entry = await registry.read("plan")
        assert entry in (VersionedDocument(b"1", 0), VersionedDocument(b"2", 1))

    bench.run(story())


def test_server_that_was_frozen_for_longer_than_a_session_removes_its_announcements(
    bench: ZooKeeperBench, server: ZooKeeper
) -> None:
    async def story() -> None:
        registry = await bench.open_registry(SHORT_MS)
        session = await announce(registry)
        server.freeze()
        try:
            await wait_for_condition(registry, lambda: registry.connection_state is ConnectionState.LOST)
            assert registry.alive_until_ms <= boot_ms()
        finally:
            server.thaw()
        await is_connected(registry, session)
        await wait_for_condition(registry, lambda: _has_no_members(registry))
        await announce(registry)

    bench.run(story())


def test_client_opens_another_session_at_a_server_that_lost_its_data() -> None:
    """The server refuses sessions that have seen later changes than it has, as if from a more recent server."""

    async def story(server: ZooKeeper) -> None:
        registry = ZooKeeperRegistry(server.hosts, "/foqs", SHORT_MS, boot_ms)
        await registry.open()
        try:
            await announce(registry)
            await replace(registry, 20)
            session = registry.session_number
            server.stop()
            shutil.rmtree(server.folder / "data")
            await asyncio.to_thread(server.start)
            await is_connected(registry, session)
            assert await plan(registry) is None
            await announce(registry)
        finally:
            await registry.close()

    with ZooKeeper() as server:
        run(story(server))


async def replace(registry: Registry, times: int) -> None:
    """Replace `plan` this many times, however often the session is suspended or changes meanwhile."""
    while times:
        await is_connected(registry)
        with contextlib.suppress(RegistryFailed, RegistryOutcomeUnknown, RegistryConflict):
            entry = await registry.read("plan")
            await registry.replace("plan", b"1", None if entry is None else entry.version)
            times -= 1


async def _has_no_members(registry: Registry) -> bool:
    return await registry.members("members") == {}


async def plan(registry: Registry) -> VersionedDocument | None:
    """Return `plan` from the first reply."""
    while True:
        await is_connected(registry)
        with contextlib.suppress(RegistryFailed):
            return await registry.read("plan")


# ---------------------------------------------------------------- the session


def test_session_timeout_is_the_one_that_the_server_grants(bench: ZooKeeperBench) -> None:
    async def story() -> None:
        registry = await bench.open_registry(10 * SESSION_TIMEOUT_MS_MAX)
        assert boot_ms() < registry.alive_until_ms <= boot_ms() + SESSION_TIMEOUT_MS_MAX

    bench.run(story())


class SteppedClock:
    """The boot-time clock of a machine that was suspended for `away_ms`."""

    def __init__(self) -> None:
        self.away_ms = 0

    def boot_ms(self) -> int:
        return boot_ms() + self.away_ms


def links_of(registry: Registry) -> list[tuple[ConnectionState, int]]:
    """Return a list that records the connection state and the session number at each change from now on."""
    seen: list[tuple[ConnectionState, int]] = []
    registry.subscribe(lambda: seen.append((registry.connection_state, registry.session_number)))
    return seen


def test_unchanged_value_is_read_once(bench: ZooKeeperBench) -> None:
    async def story() -> None:
        reader, writer = await bench.open_registry(), await bench.open_registry()
        await writer.announce("members", "a", b"1")
        await writer.announce("members", "b", b"1")
        asked = asked_of(reader)

        async def look() -> list[str]:
            asked.clear()
            await reader.read("plan")
            await reader.read("notes")
            await reader.members("members")
            return sorted(asked)

        async def until_all_is_cached() -> None:
            # A reply that arrives before it is awaited is not cached: see the next test.
            while await look() != ["sync", "sync", "sync"]:
                pass

        await writer.replace("plan", b"1", None)
        assert await look() == ["exists", "get", "get", "get", "get", "get_children", "sync", "sync", "sync"]
        await until_all_is_cached()
        await writer.replace("plan", b"2", 0)
        assert await look() == ["get", "sync", "sync", "sync"]
        await until_all_is_cached()
        await writer.replace("notes", b"1", None)
        assert await look() == ["get", "sync", "sync", "sync"]
        await until_all_is_cached()
        await writer.announce("members", "a", b"2")
        assert await look() == ["get", "sync", "sync", "sync"]
        await until_all_is_cached()
        await writer.withdraw("members", "a")
        assert await look() == ["get_children", "sync", "sync", "sync"]
        await until_all_is_cached()
        bench.disconnect(reader)
        await wait_for_condition(reader, lambda: reader.connection_state is ConnectionState.SUSPENDED)
        bench.reconnect(reader)
        await is_connected(reader)
        assert await look() == ["get", "get", "get", "get_children", "sync", "sync", "sync"]
        assert await reader.read("notes") == VersionedDocument(b"1", 0)
        assert await reader.members("members") == {"b": b"1"}

    bench.run(story())


def test_a_reply_that_arrives_before_it_is_awaited_is_not_cached(bench: ZooKeeperBench) -> None:
    """A later change of the node may be notified before it."""

    async def story() -> None:
        reader = await bench.open_registry()
        await reader.replace("plan", b"1", None)
        asked = asked_of(reader)
        client = kazoo_of(session_of(reader))
        get = client.get_async
        client.get_async = _answered_first(get)
        assert await reader.read("plan") == VersionedDocument(b"1", 0)
        client.get_async = get
        asked.clear()
        assert await reader.read("plan") == VersionedDocument(b"1", 0)
        assert sorted(asked) == ["get", "sync"]
        while asked != ["sync"]:
            asked.clear()
            assert await reader.read("plan") == VersionedDocument(b"1", 0)

    bench.run(story())


def test_value_that_is_never_cached_is_still_read(bench: ZooKeeperBench) -> None:
    """On a busy machine every reply may arrive before it is awaited."""

    async def story() -> None:
        reader, writer = await bench.open_registry(), await bench.open_registry()
        client = kazoo_of(session_of(reader))
        for name in ("exists_async", "get_async", "get_children_async"):
            setattr(client, name, _answered_first(getattr(client, name)))
        assert await reader.members("members") == {}
        assert await reader.read("plan") is None
        await writer.announce("members", "a", b"1")
        await writer.replace("plan", b"1", None)
        assert await reader.members("members") == {"a": b"1"}
        assert await reader.read("plan") == VersionedDocument(b"1", 0)

    bench.run(story())


def _answered_first(ask: Callable[..., Any]) -> Callable[..., Any]:
    def answered(*args: Any, **more: Any) -> Any:
        result = ask(*args, **more)
        result.wait(60.0)
        return result

    return answered


def asked_of(registry: Registry) -> list[str]:
    """Return a list that records the requests of a registry from now on, except those that keep its session alive."""
    zk = session_of(registry)
    asked: list[str] = []
    ask = zk.call

    async def recorded(is_write: bool, request: str, path: str, *args: Any, **more: Any) -> Any:
        asked.append(request)
        return await ask(is_write, request, path, *args, **more)

    zk.call = recorded  # type: ignore[method-assign]
    return asked


def test_silence_suspends_a_session_whatever_its_connection_says(server: ZooKeeper) -> None:
    async def story() -> None:
        clock = SteppedClock()
        registry = ZooKeeperRegistry(server.hosts, "/foqs/silence", LONG_MS, clock.boot_ms, connect_timeout_ms=60_000)
        await registry.open()
        try:
            seen = links_of(registry)
            clock.away_ms += LONG_MS // 2
            await wait_for_condition(
                registry,
                lambda: (
                    (ConnectionState.SUSPENDED, 1) in seen and registry.connection_state is ConnectionState.CONNECTED
                ),
            )
            assert registry.session_number == 1
        finally:
            await registry.close()

    run(story())


def test_client_of_a_machine_that_was_suspended_leaves_its_session_at_once(
    server: ZooKeeper,
) -> None:
    async def story() -> None:
        clock = SteppedClock()
        registry = ZooKeeperRegistry(server.hosts, "/foqs/away", LONG_MS, clock.boot_ms, connect_timeout_ms=60_000)
        await registry.open()
        try:
            await registry.announce("members", "a", b"1")
            seen = links_of(registry)
            clock.away_ms += LONG_MS
            await wait_for_condition(
                registry,
                lambda: registry.session_number == 2 and registry.connection_state is ConnectionState.CONNECTED,
            )
            assert (ConnectionState.LOST, 1) in seen
            assert await registry.members("members") == {}
        finally:
            await registry.close()

    run(story())


def test_session_lifetime_counts_from_the_request_and_not_from_its_reply(server: ZooKeeper) -> None:
    async def story() -> None:
        clock = SteppedClock()
        registry = ZooKeeperRegistry(server.hosts, "/foqs/sent", LONG_MS, clock.boot_ms, connect_timeout_ms=60_000)
        await registry.open()
        try:
            zk = session_of(registry)
            before_ms = registry.alive_until_ms
            submit, answered = zk.submit, asyncio.Event()

            def suspended_meanwhile(request: str, path: str, *args: Any, **more: Any) -> asyncio.Future[Any]:
                sent = submit(request, path, *args, **more)
                clock.away_ms += LONG_MS
                # Called after the registry's own listener.
                asyncio.get_running_loop().call_soon(sent.add_done_callback, lambda _: answered.set())
                return sent

            zk.submit = suspended_meanwhile  # type: ignore[method-assign]
            await answered.wait()
            assert before_ms <= registry.alive_until_ms <= clock.boot_ms()
            assert registry.connection_state is ConnectionState.LOST
        finally:
            await registry.close()

    run(story())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_registry_opens_another_session_after_its_connection_dies(
    bench: ZooKeeperBench,
) -> None:
    async def story() -> None:
        registry = await bench.open_registry()
        zk = session_of(registry)
        await registry.announce("members", "a", b"1")

        def fail(timeout: float) -> None:
            raise RuntimeError("a defect of kazoo")

        kazoo_of(zk)._connection._read_socket = fail
        await is_connected(registry, 1)
        await registry.announce("members", "a", b"2")
        assert await registry.members("members") == {"a": b"2"}

    bench.run(story())


def test_announcement_replaces_that_of_an_earlier_session_of_the_same_registry(
    bench: ZooKeeperBench, server: ZooKeeper
) -> None:
    async def story() -> None:
        registry = await bench.open_registry()
        assert isinstance(registry, ZooKeeperRegistry)
        await registry.replace("members/x", b"", None)
        earlier = await asyncio.to_thread(_begin, server)
        try:
            await asyncio.to_thread(earlier.create, f"{bench.root}/members/a", b"1", ephemeral=True)
            with pytest.raises(RegistryConflict):
                await registry.announce("members", "a", b"2")
            registry._own_session_ids.append(earlier.client_id[0])
            await registry.announce("members", "a", b"2")
        finally:
            await asyncio.to_thread(_end, earlier)
        assert await registry.members("members") == {"a": b"2"}

    bench.run(story())


def _begin(server: ZooKeeper) -> KazooClient:
    client = KazooClient(server.hosts)
    client.start(timeout=60.0)
    return client


def _end(client: KazooClient) -> None:
    client.stop()
    client.close()


def test_registry_that_outlives_its_event_loop_raises_no_error(
    server: ZooKeeper, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> ZooKeeperRegistry:
        registry = ZooKeeperRegistry(server.hosts, "/foqs/left", LONG_MS, boot_ms, connect_timeout_ms=60_000)
        await registry.open()
        await registry.read("plan")
        return registry

    registry = asyncio.run(story())
    client = kazoo_of(session_of(registry))
    # Its watch fires, its state changes, and a request is answered: all to a loop that is closed.
    client.ensure_path("/foqs/left/plan")
    client.sync("/")
    _end(client)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_error_names_an_absent_server_and_the_registry_opens_when_it_starts() -> None:
    async def story() -> None:
        port = free_port()
        registry = ZooKeeperRegistry(f"127.0.0.1:{port}", "/foqs", LONG_MS, boot_ms, connect_timeout_ms=200)
        named = 0
        while named < 2:  # the error has no reason if a busy machine made no attempt in time
            with pytest.raises(RegistryFailed, match=f"127.0.0.1:{port} gave no session within 200 ms") as failed:
                await registry.open()
            named += "Connection refused" in str(failed.value)
        await registry.close()

    asyncio.run(story())


def test_invalid_address_is_refused() -> None:
    async def story() -> None:
        with pytest.raises(RegistryFailed, match=r"is not a list of servers: .*; write zk1:2181"):
            await ZooKeeperRegistry("127.0.0.1:port", "/foqs", LONG_MS, boot_ms).open()

    asyncio.run(story())


# ------------------------------------------------------------------ credentials


def test_node_created_with_credentials_belongs_to_this_user_only(server: ZooKeeper) -> None:
    root = f"/foqs-{next(_fresh)}/v1"

    def user(credentials: tuple[str, str] | None) -> ZooKeeperRegistry:
        return ZooKeeperRegistry(server.hosts, root, LONG_MS, boot_ms, credentials, connect_timeout_ms=60_000)

    async def story() -> None:
        owner, same = user(("foqs", "secret:with colon")), user(("foqs", "secret:with colon"))
        others = [user(None), user(("foqs", "guessed")), user(("other", "secret:with colon"))]
        registries = [owner, same, *others]
        try:
            for registry in registries:
                await registry.open()
            await owner.replace("plan", b"1", None)
            await owner.announce("members", "a", b"1")
            assert await same.read("plan") == VersionedDocument(b"1", 0)
            assert await same.replace("plan", b"2", 0) == 1
            assert await same.members("members") == {"a": b"1"}
            for other in others:
                for call in (
                    other.read("plan"),
                    other.replace("plan", b"3", 1),
                    other.replace("catalog", b"3", None),
                    other.members("members"),
                    other.announce("members", "b", b"1"),
                ):
                    with pytest.raises(RegistryFailed, match="credentials"):
                        await call
            assert await owner.read("plan") == VersionedDocument(b"2", 1)
        finally:
            await asyncio.gather(*(registry.close() for registry in registries))

    asyncio.run(story())


def test_node_created_without_credentials_is_open_to_everybody(bench: ZooKeeperBench, server: ZooKeeper) -> None:
    async def story() -> None:
        registry = await bench.open_registry()
        await registry.replace("plan", b"1", None)
        other = ZooKeeperRegistry(server.hosts, bench.root, LONG_MS, boot_ms, ("foqs", "secret"))
        await other.open()
        try:
            assert await other.replace("plan", b"2", 0) == 1
        finally:
            await other.close()

    bench.run(story())
