"""The servers with tables: a COMMIT waits for its ack, and the tables are what readers see of the log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from random import Random
from typing import Any, Final

import pytest

from foqs.store.in_memory.memory_table import ShardTables
from shardmgr.primary import LossPolicy, Primary
from shardmgr.promotion import SendCommand, ServerCommand
from tests.support.plain_regions import REGIONS, PlainServer, World
from tests.support.replicated_servers import CommitFailed, Effect, ReplicatedServer, Replication
from tests.support.virtual_time import run_virtual

SHARD: Final = 1


class Site:
    """A primary in r1 that waits for acks, and its replicas."""

    def __init__(self) -> None:
        self.replication: Replication
        self.servers = {name: ReplicatedServer(name, (SHARD,), lambda: self.replication.wake()) for name in REGIONS}
        ackers = {"r2": "", "r3": ""}
        world = World(Primary(1, "r1", LossPolicy.SEMI_SYNC, ackers), servers=dict[str, PlainServer](self.servers))
        self.world = world
        self.replication = Replication(asyncio.get_running_loop(), Random(1), world)
        self.primary = self.servers["r1"]
        self.primary.append(term=1)
        for server in self.servers.values():
            server.begin_with(self.primary.log)
            if server is not self.primary:
                server.acknowledges = True
                server.start_receiving("r1")
        self.primary.is_read_only, self.primary.waits_for_acks = False, True

    def cut(self) -> None:
        """Let no replica receive from the primary."""
        self.world.cut |= {frozenset(("r1", "r2")), frozenset(("r1", "r3"))}

    def write(self, flush: int) -> asyncio.Task[Any]:
        return asyncio.ensure_future(self.primary.commit(SHARD, 1, flush, owner_at(flush)))

    def flush_at(self, name: str) -> int:
        return self.servers[name].tables[SHARD].owner.flush


def owner_at(flush: int) -> Effect:
    def effect(tables: ShardTables) -> None:
        tables.owner = replace(tables.owner, epoch=1, flush=flush)

    return effect


def at_site(story: Callable[[Site], Coroutine[Any, Any, None]]) -> None:
    async def play() -> None:
        await story(Site())

    run_virtual(play, until_s=60)


def test_commit_returns_when_a_replica_has_it_and_all_copies_get_it() -> None:
    async def story(site: Site) -> None:
        await site.write(1)
        assert site.flush_at("r1") == 1
        await asyncio.sleep(1)
        assert [site.flush_at(name) for name in REGIONS] == [1, 1, 1]
        assert site.servers["r2"].applied_position() == site.primary.applied_position()

    at_site(story)


def test_commit_without_an_ack_is_not_seen_until_a_restart_frees_it() -> None:
    async def story(site: Site) -> None:
        await site.write(1)
        site.cut()
        commit = site.write(2)
        await asyncio.sleep(5)
        assert (commit.done(), site.flush_at("r1"), site.primary.waiting_commits) == (False, 1, 1)
        site.primary.kill9()
        with pytest.raises(CommitFailed, match="died"):
            await commit
        assert site.flush_at("r1") == 1
        site.primary.start()
        assert (site.flush_at("r1"), site.primary.is_read_only) == (2, True)

    at_site(story)


def test_start_that_cuts_the_log_makes_the_tables_again_without_it() -> None:
    async def story(site: Site) -> None:
        await site.write(1)
        await asyncio.sleep(1)
        site.cut()
        commit = site.write(2)
        await asyncio.sleep(1)
        site.primary.kill9()
        with pytest.raises(CommitFailed):
            await commit
        site.primary.start(cuts=True)
        # One more than was not acknowledged is cut off.
        assert site.flush_at("r1") == 0
        assert site.primary.is_contained_in(site.servers["r2"].log)

    at_site(story)


def test_read_only_server_refuses_a_commit() -> None:
    async def story(site: Site) -> None:
        await site.write(1)
        site.primary.carry_out(SendCommand("r1", ServerCommand.MAKE_READ_ONLY))
        with pytest.raises(CommitFailed, match="read-only"):
            await site.write(2)

    at_site(story)


def test_replica_that_has_more_than_its_source_is_refused() -> None:
    async def story(site: Site) -> None:
        await site.write(1)
        site.cut()
        commit = site.write(2)
        await asyncio.sleep(1)
        other = site.servers["r2"]
        site.primary.kill9()
        with pytest.raises(CommitFailed):
            await commit
        site.primary.start()
        site.world.cut.clear()
        other.carry_out(SendCommand("r2", ServerCommand.BECOME_PRIMARY))
        site.primary.carry_out(SendCommand("r1", ServerCommand.FOLLOW, "r2"))
        await asyncio.sleep(1)
        assert not site.primary.is_receiving
        site.primary.begin_with(other.log)
        assert site.flush_at("r1") == 1
        site.primary.carry_out(SendCommand("r1", ServerCommand.FOLLOW, "r2"))
        await asyncio.sleep(1)
        assert site.primary.is_receiving

    at_site(story)


def test_sql_thread_that_stands_applies_later_and_a_restart_throws_away_what_it_has_not_applied() -> None:
    async def story(site: Site) -> None:
        loop = asyncio.get_running_loop()
        site.replication.applies_from_s["r2"] = loop.time() + 2
        await site.write(1)
        await asyncio.sleep(1)
        replica = site.servers["r2"]
        assert (site.flush_at("r2"), len(replica.relay)) == (0, 1)
        assert replica.received_position() == site.primary.applied_position()
        site.cut()
        replica.is_receiving = replica.is_applying = False
        replica.start_receiving("r1")
        assert replica.received_position() == replica.applied_position()
        site.world.cut.clear()
        site.replication.wake()
        await asyncio.sleep(3)
        assert site.flush_at("r2") == 1

    at_site(story)


def test_replica_applies_nothing_to_rows_that_a_connection_has_locked() -> None:
    async def story(site: Site) -> None:
        await site.write(1)
        await asyncio.sleep(1)
        replica = site.servers["r2"]
        replica.tables[SHARD].locked_by = 7
        await site.write(2)
        await asyncio.sleep(1)
        assert (site.flush_at("r2"), len(replica.relay), site.flush_at("r3")) == (1, 1, 2)
        replica.tables[SHARD].locked_by = None
        await asyncio.sleep(1)
        assert site.flush_at("r2") == 2

    at_site(story)


def test_drained_primary_that_follows_applies_to_rows_that_a_connection_had_locked() -> None:
    async def story(site: Site) -> None:
        await site.write(1)
        await asyncio.sleep(1)
        drained, other = site.primary, site.servers["r2"]
        drained.tables[SHARD].locked_by = 7
        ended = []

        def end_hosts() -> None:
            ended.append(drained.is_receiving)
            drained.tables[SHARD].locked_by = None

        drained.end_hosts = end_hosts
        drained.carry_out(SendCommand("r1", ServerCommand.MAKE_READ_ONLY))
        other.carry_out(SendCommand("r2", ServerCommand.BECOME_PRIMARY))
        other.carry_out(SendCommand("r2", ServerCommand.OPEN))
        assert ended == []
        drained.carry_out(SendCommand("r1", ServerCommand.FOLLOW, "r2"))
        await other.commit(SHARD, 1, 2, owner_at(2))
        await asyncio.sleep(1)
        assert (ended, site.flush_at("r1")) == ([False], 2)

    at_site(story)


def test_what_a_start_has_cut_off_is_known_until_the_server_is_opened() -> None:
    async def story(site: Site) -> None:
        await site.write(1)
        await asyncio.sleep(1)
        site.primary.kill9()
        site.primary.start(cuts=True)
        assert (len(site.primary.cut_off), site.flush_at("r1")) == (1, 0)
        assert site.primary.tables_with_all()[SHARD].owner.flush == 1
        site.primary.carry_out(SendCommand("r1", ServerCommand.OPEN, waits_for_acks=True))
        assert site.primary.tables_with_all()[SHARD].owner.flush == 0

    at_site(story)
