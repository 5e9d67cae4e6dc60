"""The primary of a real database moves by SQL alone: what was acknowledged is there, and the former primary refuses hosts."""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pymysql
import pytest

from foqs.cli.doctor.region_checks import promoter_problem
from foqs.store.mysql.mysql_driver import WrongServer
from shardmgr.loss_report import LastFlush
from shardmgr.primary import Primary, PrimaryState
from shardmgr.primary_changes import start_drain, start_revoking
from shardmgr.primary_document import change_primary, read_primary, replace_primary
from shardmgr.primary_moves import progress_text
from shardmgr.promoter import Promoter, PromoterRound
from shardmgr.promotion import AwaitChange, SendCommand, ServerCommand
from shardmgr.registry.port import Registry
from shardmgr.server_port import ServerFailed
from tests.support.aio import run
from tests.support.local_ensemble import LocalEnsemble
from tests.support.mysql9 import MYSQL9_IF_LONG
from tests.support.poll import until
from tests.support.region_servers import SCHEMA, RegionServers

pytestmark = [pytest.mark.mysql, pytest.mark.timeout(240)]

_ROUNDS_S = 120.0
"""A guard against hanging: how many rounds the servers take is not known."""
_WRITERS = 4
READ_ONLY = "1290|1836"


@pytest.fixture(params=MYSQL9_IF_LONG)
def servers(request: pytest.FixtureRequest) -> Iterator[RegionServers]:
    with RegionServers(request.param, 2) as started:
        yield started


@pytest.fixture(params=MYSQL9_IF_LONG)
def three_servers(request: pytest.FixtureRequest) -> Iterator[RegionServers]:
    with RegionServers(request.param, 3) as started:
        yield started


class Database:
    """The entry of the database, and promoters that replace its primary; no shard is owned."""

    def __init__(self, registry: Registry, servers: RegionServers) -> None:
        self.registry = registry
        self.servers = servers
        self.promoters: list[Promoter] = []

    def promoter(self) -> Promoter:
        async def are_shards_free(entry: Primary) -> bool:
            return True

        self.promoters.append(Promoter(self.registry, "main", self.servers.for_promoter(), are_shards_free))
        return self.promoters[-1]

    async def entry(self) -> Primary:
        found = await read_primary(self.registry, "main")
        assert found is not None
        return found.entry

    async def move(self, promoter: Callable[[], Promoter]) -> Primary:
        """Run rounds until the database is at rest. `promoter` returns the one of each round."""
        rounds: list[PromoterRound] = []
        for _ in rounds_in_time():
            done = await promoter().run_round()
            assert done is not None
            rounds.append(done)
            at_rest = done.is_waiting and not done.problems and all(done.entry.ackers.values())
            if done.entry.state is PrimaryState.SERVING and at_rest:
                return done.entry
        raise AssertionError("\n".join(f"{done.entry.state} {done.step} {done.problems}" for done in rounds[-30:]))


def rounds_in_time() -> Iterator[None]:
    """Yield for each round until they take too long."""
    end_s = time.monotonic() + _ROUNDS_S
    while time.monotonic() < end_s:
        yield


@asynccontextmanager
async def serving(servers: RegionServers, entry: Primary | None = None) -> AsyncIterator[Database]:
    """A database whose first term has begun. `entry`: its first one, instead of that with all servers."""
    registry = LocalEnsemble(None, lambda: 0).registry(6_000)
    await registry.open()
    database = Database(registry, servers)
    try:
        await replace_primary(registry, "main", entry or servers.first_entry, None)
        promoter = database.promoter()
        await database.move(lambda: promoter)
        yield database
    finally:
        for each in database.promoters:
            await each.close()
        await registry.close()


def test_primary_moves_and_back_although_the_promoter_is_another_one_at_each_step(servers: RegionServers) -> None:
    async def story() -> None:
        async with serving(servers) as database:
            servers.make_table("a")
            servers.write("a", "first")
            with pytest.raises(pymysql.MySQLError, match=READ_ONLY):
                servers.write("b", "at an acker")
            first = await database.entry()
            await servers.connect_as_host("a", first)
            with pytest.raises(WrongServer, match="another server than the primary a: its server_id is 12"):
                await servers.connect_as_host("b", first)
            await change_primary(database.registry, "main", lambda entry: start_drain(entry, "b"))
            moved = await database.move(database.promoter)
            assert (moved.term, moved.server, set(moved.ackers)) == (2, "b", {"a"})
            with pytest.raises(pymysql.MySQLError, match=READ_ONLY):
                servers.write("a", "at the former primary")
            servers.write("b", "second")
            await servers.connect_as_host("b", moved)
            with pytest.raises(WrongServer, match="another server than the primary b"):
                await servers.connect_as_host("a", moved)
            with pytest.raises(WrongServer, match="a is in term 2, and this host in term 1"):
                await servers.connect_as_host("a", first)
            servers.servers["b"].query("SET GLOBAL read_only = 1")
            with pytest.raises(WrongServer, match="b is read-only"):
                await servers.connect_as_host("b", moved)
            servers.servers["b"].query("SET GLOBAL read_only = 0")
            # Each promoter has ended the connections of the one before.
            frozen, newest = database.promoters[-2:]
            for connection in frozen._connections.values():
                assert connection.is_usable
            done = await frozen.run_round()
            assert done is not None
            assert done.problems.keys() == {"a", "b"}
            assert newest is not frozen

            await change_primary(database.registry, "main", lambda entry: start_drain(entry, "a"))
            back = await database.move(database.promoter)
            assert (back.term, back.server, set(back.ackers)) == (3, "a", {"b"})
            servers.write("a", "third")
            assert servers.rows("a") == {"first", "second", "third"}

    run(story(), timeout=200)


class Writers:
    """Threads that write rows as hosts do until their server is lost."""

    def __init__(self, servers: RegionServers, name: str) -> None:
        self.tried: set[str] = set()
        self.acknowledged: set[str] = set()
        """The rows whose COMMIT the server has acknowledged."""
        self._servers = servers
        self._name = name
        self._threads = [threading.Thread(target=self._write, args=(number,)) for number in range(_WRITERS)]
        for thread in self._threads:
            thread.start()

    def wait_for_more(self) -> None:
        """Return when more rows were written, by commits that began after this call."""
        enough = len(self.acknowledged) + 2 * _WRITERS
        until(lambda: len(self.acknowledged) >= enough, "writers go on")

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _write(self, writer: int) -> None:
        for number in itertools.count():
            row = f"{writer}-{number}"
            self.tried.add(row)
            try:
                self._servers.write(self._name, row)
            except pymysql.MySQLError:
                return
            self.acknowledged.add(row)


async def lose_primary(database: Database, *, waits_for_acks: bool) -> tuple[Writers, Primary]:
    """Kill the primary `a` while hosts write, and promote an acker. Return what was written, and the next primary.

    The SQL thread of `b` stands, and no acker receives the last rows. `waits_for_acks`: or else the primary was weakened,
    and answers all the same.
    """
    servers = database.servers
    servers.make_table("a")
    servers.stop_replication("b", "SQL_THREAD")
    if not waits_for_acks:
        servers.stop_waiting_for_acks("a")
    writers = Writers(servers, "a")
    try:
        writers.wait_for_more()
        servers.stop_replication("b", "IO_THREAD")
        writers.wait_for_more()
        servers.stop_replication("c", "IO_THREAD")
        if waits_for_acks:
            until(lambda: servers.waits_for_ack("a"), "a commit waits for an acker")
        else:
            writers.wait_for_more()
    finally:
        servers.servers["a"].kill9()
        writers.join()
    await change_primary(database.registry, "main", start_revoking)
    promoter = database.promoter()
    done: PromoterRound | None = None
    for _ in rounds_in_time():
        done = await promoter.run_round()
        assert done is not None
        if done.entry.state is PrimaryState.SERVING:
            return writers, done.entry
    raise AssertionError(done)


def test_acker_of_a_killed_primary_serves_with_all_that_was_acknowledged_although_another_one_stands(
    three_servers: RegionServers,
) -> None:
    async def story() -> None:
        async with serving(three_servers) as database:
            writers, entry = await lose_primary(database, waits_for_acks=True)
            assert (entry.term, entry.server, set(entry.ackers)) == (2, "c", {"b"})
            await three_servers.connect_as_host("c", entry)
            three_servers.write("c", "after")
            assert writers.acknowledged | {"after"} <= three_servers.rows("c") <= writers.tried | {"after"}

    run(story(), timeout=200)


def test_no_acker_is_proven_while_a_replica_acknowledges_that_the_entry_does_not_name(
    three_servers: RegionServers,
) -> None:
    async def story() -> None:
        entry = three_servers.first_entry
        two = {name: server for name, server in entry.servers.items() if name != "c"}
        async with serving(three_servers, replace(entry, servers=two, ackers={"b": ""})) as database:
            stranger = await three_servers.for_promoter().connect("c")
            await stranger.carry_out(SendCommand("c", ServerCommand.FOLLOW, "a"))
            rounds = database.promoters[-1]
            done: PromoterRound | None = None
            for _ in rounds_in_time():
                done = await rounds.run_round()
                assert done is not None
                if not done.entry.ackers["b"] and isinstance(done.step, AwaitChange) and done.step.missing:
                    break
            assert done is not None
            assert "2 replicas acknowledge to a, of which the entry names 1" in progress_text(done)
            await stranger.carry_out(SendCommand("c", ServerCommand.REVOKE))
            stranger.close()
            # The primary notices within a heartbeat that it has gone.
            for _ in rounds_in_time():
                done = await rounds.run_round()
                if done is not None and done.entry.ackers["b"]:
                    return
            raise AssertionError(done)

    run(story(), timeout=200)


def test_drained_primary_follows_although_a_frozen_host_has_locked_a_row_there(servers: RegionServers) -> None:
    async def story() -> None:
        async with serving(servers) as database:
            servers.make_table("a")
            servers.write("a", "held")
            frozen = servers.hold("a", "held")
            await change_primary(database.registry, "main", lambda entry: start_drain(entry, "b"))
            await database.move(database.promoter)
            servers.servers["b"].query(f"DELETE FROM {SCHEMA}.item WHERE text = 'held'")
            until(lambda: servers.rows("a") == set(), "the drained primary applies to the row that was locked")
            await change_primary(database.registry, "main", lambda entry: start_drain(entry, "a"))
            back = await database.move(database.promoter)
            assert (back.term, back.server, set(back.ackers)) == (3, "a", {"b"})
            with pytest.raises(pymysql.MySQLError):
                frozen.query("COMMIT")

    run(story(), timeout=200)


def test_promoter_that_may_not_end_connections_says_which_right_it_lacks_and_doctor_says_so_before(
    servers: RegionServers,
) -> None:
    async def story() -> None:
        async with serving(servers):
            servers.make_table("a")
            servers.write("a", "held")
            server = servers.servers["a"]
            settings = server.settings("", user="promoter", unix_socket=None, port=server.port)
            assert await promoter_problem(settings) == ("", "")
            right = "CONNECTION_ADMIN" if servers.kind == "mysql9" else "CONNECTION ADMIN"
            server.query(f"REVOKE {right} ON *.* FROM promoter@'127.0.0.1'")
            grant = f"GRANT {right} ON *.* TO promoter@'...'"
            assert await promoter_problem(settings) == (f"promoter lacks {right}", grant)
            frozen = servers.hold("a", "held")
            connection = await servers.for_promoter().connect("a")
            refused = (
                rf"a: promoter may not end connections of the hosts \(hosts\) there: .*; as root: {re.escape(grant)}"
            )
            with pytest.raises(ServerFailed, match=refused):
                await connection.carry_out(SendCommand("a", ServerCommand.FOLLOW, "b"))
            frozen.query("COMMIT")
            connection.close()

    run(story(), timeout=200)


def test_last_flushes_are_read_of_the_shards_that_have_tables(servers: RegionServers) -> None:
    async def story() -> None:
        async with serving(servers):
            columns = "one TINYINT, epoch BIGINT, flush BIGINT, clock_ms BIGINT UNSIGNED, offset_ms BIGINT"
            for shard in (1, 4, 5):
                servers.servers["a"].query(f"CREATE TABLE {SCHEMA}.foqs_{shard}_owner ({columns})")
                row = f"(1, {shard + 10}, {shard + 20}, {shard + 1_000}, 1000)"
                servers.servers["a"].query(f"INSERT INTO {SCHEMA}.foqs_{shard}_owner VALUES {row}")
            connection = await servers.for_promoter().connect("a")
            found = await connection.last_flushes(range(7))
            assert found == [LastFlush(shard, shard + 10, shard + 20, shard) for shard in (1, 4, 5)]
            assert await connection.last_flushes([]) == []
            # A row that cannot be read, and a table that somebody holds, do not hide the others.
            servers.servers["a"].query(f"CREATE TABLE {SCHEMA}.foqs_2_owner (one TINYINT)")
            with pymysql.connect(user="root", **servers.servers["a"].connect_arguments) as holder:
                holder.cursor().execute(f"LOCK TABLES {SCHEMA}.foqs_5_owner WRITE")
                held = {each.shard: each for each in await connection.last_flushes(range(7))}
            assert [(number, each.flush, bool(each.problem)) for number, each in sorted(held.items())] == [
                (1, 21, False),
                (2, 0, True),
                (4, 24, False),
                (5, 0, True),
            ]
            assert await connection.last_flushes([5]) == [LastFlush(5, 15, 25, 5)]
            connection.close()

    run(story(), timeout=200)


def test_replica_is_shut_out_once_its_account_is_locked(servers: RegionServers) -> None:
    async def story() -> None:
        async with serving(servers):
            connection = await servers.for_promoter().connect("a")
            with pytest.raises(ServerFailed, match="a: b can still receive from it with its account; as root at a"):
                await connection.end_reception("b")
            assert not await connection.refuses("b")
            servers.lock_accounts("a", "b")
            assert await connection.refuses("b")
            await connection.end_reception("b")
            # It tries to log in again now and then, and is listed until it is refused.
            receiving = "SELECT id FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'"
            assert servers.servers["a"].query(receiving) == []
            connection.close()

    run(story(), timeout=200)


@pytest.mark.long
def test_rows_are_lost_if_the_primary_waits_for_no_acks(three_servers: RegionServers) -> None:
    """So the test before this one can fail."""

    async def story() -> None:
        async with serving(three_servers) as database:
            writers, entry = await lose_primary(database, waits_for_acks=False)
            assert writers.acknowledged - three_servers.rows(entry.server)

    run(story(), timeout=200)
