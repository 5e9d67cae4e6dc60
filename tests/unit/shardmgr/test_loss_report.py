"""After an accepted loss it is known what is left of each shard, whatever happens to the promoter then."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from shardmgr.layout_changes import create_layout
from shardmgr.loss_report import (
    LastFlush,
    LossReport,
    parse_loss_report,
    read_loss_report,
    render_loss_report,
    write_loss_report,
)
from shardmgr.model import MalformedDocument, ShardSpec
from shardmgr.positions import LostRange, ShardPosition, write_positions
from shardmgr.primary import LossPolicy, Primary, PrimaryState
from shardmgr.primary_changes import accept_loss, start_revoking
from shardmgr.primary_document import change_primary, read_primary, replace_primary
from shardmgr.promoter import Promoter, PromoterRound
from shardmgr.promotion import AwaitChange
from shardmgr.server_port import ServerFailed
from tests.support.local_ensemble import LocalEnsemble
from tests.support.plain_database_servers import PlainConnection, PlainDatabaseServers
from tests.support.plain_regions import World
from tests.unit.shardmgr.test_primary_moves import SERVERS

REPORT = LossReport(4, "b", [LastFlush(2, 7, 19, 1_500), LastFlush(3, 1, 0, -5)])


def test_report_survives_rendering_and_parsing() -> None:
    assert parse_loss_report(render_loss_report(REPORT)) == REPORT
    with pytest.raises(MalformedDocument, match="term"):
        parse_loss_report(render_loss_report(REPORT).replace(b'"term":4', b'"term":0'))


def test_report_is_written_before_the_term_begins_and_not_without_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        registry = LocalEnsemble(None, lambda: 0).registry(6_000)
        await registry.open()
        await create_layout(registry, [ShardSpec(1, "main"), ShardSpec(2, "else")])
        world = World(Primary(3, "r1", LossPolicy.ASYNC, {"r2": "", "r3": ""}, servers=SERVERS))
        world.servers["r2"].append(flush=4, epoch=9)
        world.servers["r1"].kill9()
        await replace_primary(registry, "main", world.entry, None)
        await change_primary(registry, "main", lambda entry: accept_loss(start_revoking(entry), "r2"))

        async def are_shards_free(entry: Primary) -> bool:
            return True

        promoter = Promoter(registry, "main", PlainDatabaseServers(world, "r2"), are_shards_free)

        async def state() -> PrimaryState:
            await promoter.run_round()
            found = await read_primary(registry, "main")
            assert found is not None
            return found.entry.state

        async def fails(connection: PlainConnection, shards: object) -> object:
            raise ServerFailed("r2: it is gone")

        with monkeypatch.context() as patched:
            patched.setattr(PlainConnection, "last_flushes", fails)
            assert [await state() for _ in range(6)][-1] is PrimaryState.FENCED
        assert await read_loss_report(registry, "main") is None
        assert await state() is PrimaryState.PROMOTING
        found = await read_loss_report(registry, "main")
        assert found == LossReport(4, "r2", [LastFlush(1, 9, 4, 7_000)])
        await write_loss_report(registry, "main", found)
        await promoter.close()

    asyncio.run(asyncio.wait_for(story(), 60))


def test_proof_that_lacks_what_owners_published_promotes_nothing_until_the_loss_is_accepted() -> None:
    async def story() -> None:
        registry = LocalEnsemble(None, lambda: 0).registry(6_000)
        await registry.open()
        await create_layout(
            registry, [ShardSpec(1, "main"), ShardSpec(2, "main"), ShardSpec(3, "else"), ShardSpec(4, "main")]
        )
        world = World(Primary(3, "r1", LossPolicy.SEMI_SYNC, {"r2": "", "r3": ""}, servers=SERVERS))
        world.servers["r1"].append(flush=4, epoch=9)
        for name in ("r2", "r3"):
            world.servers[name].log = list(world.servers["r1"].log)
        standings = {name: world.servers[name].standing for name in ("r2", "r3")}
        await replace_primary(registry, "main", replace(world.entry, ackers=standings), None)
        # Its owner was told that flush 6 is committed, so somebody had switched semi-sync off.
        published = [
            ShardPosition(1, 9, 3, [(0, 0), (6, 60)], 1_060),
            ShardPosition(2, 12, 2, [(0, 0), (40, 400)], 1_400),
            ShardPosition(3, 99, 3, [(7, 70)], 1_070),
            ShardPosition(4, 1, 3, [(1, 10)], 1_010),
        ]
        await write_positions(registry, "one", published, None)
        world.servers["r1"].kill9()
        await change_primary(registry, "main", start_revoking)

        async def are_shards_free(entry: Primary) -> bool:
            return True

        servers = PlainDatabaseServers(world, "r2")
        servers.shards_without_tables.add(4)
        promoter = Promoter(registry, "main", servers, are_shards_free)

        async def rounds(count: int) -> PromoterRound:
            """Run rounds, and return the last one."""
            for _ in range(count):
                done = await promoter.run_round()
                for name in ("r2", "r3"):
                    world.servers[name].apply_next()
            assert done is not None
            return done

        done = await rounds(9)
        assert done.entry.state is PrimaryState.FENCED
        assert isinstance(done.step, AwaitChange)
        [missing] = done.step.missing
        assert missing == (
            "r2 lacks what owners of these shards published: 1 (flush 6 of epoch 9; there: flush 4 of epoch 9), 4 (flush 1 of "
            "epoch 1; there: none); so commits of r1 returned without an ack. If r1 is there, use foqs database abort; otherwise "
            "accept the loss with foqs database promote"
        )
        await change_primary(registry, "main", accept_loss)
        assert (await rounds(3)).entry.state is PrimaryState.PROMOTING
        found = await read_loss_report(registry, "main")
        assert found is not None
        assert [(each.epoch, each.lost) for each in found.left] == [
            (9, LostRange(2, 0, 1_060)),
            (9, LostRange(40, 400, None)),
            (0, LostRange(1, 10, None)),
        ]
        await promoter.close()

    asyncio.run(asyncio.wait_for(story(), 60))
