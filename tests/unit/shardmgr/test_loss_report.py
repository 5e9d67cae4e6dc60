"""After an accepted loss it is known what is left of each shard, whatever happens to the promoter then."""

from __future__ import annotations

import asyncio

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
from shardmgr.primary import LossPolicy, Primary, PrimaryState
from shardmgr.primary_changes import accept_loss, start_revoking
from shardmgr.primary_document import change_primary, read_primary, replace_primary
from shardmgr.promoter import Promoter
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
