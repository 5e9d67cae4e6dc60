"""After an accepted loss it is known what is left of each shard, whatever happens to the promoter then."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
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
from shardmgr.positions import LostRange, ShardPosition, render_positions, write_positions
from shardmgr.primary import LossPolicy, Primary, PrimaryState
from shardmgr.primary_changes import abort, accept_loss, start_revoking
from shardmgr.primary_document import change_primary, read_primary, replace_primary
from shardmgr.primary_moves import progress_text
from shardmgr.promoter import Promoter, PromoterRound
from shardmgr.promotion import AwaitChange
from shardmgr.registry.port import Registry
from shardmgr.server_port import ServerFailed
from tests.support.local_ensemble import LocalEnsemble
from tests.support.plain_database_servers import PlainConnection, PlainDatabaseServers
from tests.support.plain_regions import World
from tests.unit.shardmgr.test_primary_moves import SERVERS

REPORT = LossReport(
    4,
    "b",
    [LastFlush(2, 7, 19, 1_500), LastFlush(3, 1, 0, -5), LastFlush(4, 0, 0, 0, problem="1034: its index is damaged")],
)


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


class Site:
    """A database with the shards 1, 2 and 4 whose primary is lost, with what owners had published, and a promoter that replaces it."""

    def __init__(self, registry: Registry, published: Sequence[ShardPosition]) -> None:
        self.registry = registry
        self.published = published
        self.reads = 0
        """How often the documents of positions were listed."""
        self.now_ms = 0
        self.world = World(Primary(3, "r1", LossPolicy.SEMI_SYNC, {"r2": "", "r3": ""}, servers=SERVERS))
        self.servers = PlainDatabaseServers(self.world, "r2")

        async def are_shards_free(entry: Primary) -> bool:
            return True

        self.promoter = Promoter(self, "main", self.servers, are_shards_free, None, lambda: self.now_ms)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> object:
        return getattr(self.registry, name)

    async def names(self, folder: str) -> Sequence[str]:
        self.reads += 1
        return await self.registry.names(folder)

    async def start(self) -> None:
        await create_layout(
            self.registry, [ShardSpec(1, "main"), ShardSpec(2, "main"), ShardSpec(3, "else"), ShardSpec(4, "main")]
        )
        servers = self.world.servers
        servers["r1"].append(flush=4, epoch=9)
        for name in ("r2", "r3"):
            servers[name].log = list(servers["r1"].log)
        standings = {name: servers[name].standing for name in ("r2", "r3")}
        await replace_primary(self.registry, "main", replace(self.world.entry, ackers=standings), None)
        await write_positions(self.registry, "one", render_positions(self.published), None)
        servers["r1"].kill9()
        await change_primary(self.registry, "main", start_revoking)

    async def rounds(self, count: int) -> PromoterRound:
        """Run rounds, and return the last one."""
        for _ in range(count):
            done = await self.promoter.run_round()
            for name in ("r2", "r3"):
                self.world.servers[name].apply_next()
        assert done is not None
        return done

    async def report(self) -> LossReport:
        found = await read_loss_report(self.registry, "main")
        assert found is not None
        return found


def on_site(story: Callable[[Site], Awaitable[None]], published: Sequence[ShardPosition]) -> None:
    async def main() -> None:
        registry = LocalEnsemble(None, lambda: 0).registry(6_000)
        await registry.open()
        site = Site(registry, published)
        await site.start()
        await story(site)
        await site.promoter.close()

    asyncio.run(asyncio.wait_for(main(), 60))


LACKING = [
    # Its owner was told that flush 6 is committed, so somebody had switched semi-sync off.
    ShardPosition(1, "main", 9, 3, [(0, 0), (6, 60)], 1_060),
    ShardPosition(2, "main", 12, 2, [(0, 0), (40, 400)], 1_400),
    ShardPosition(3, "else", 99, 3, [(7, 70)], 1_070),
    ShardPosition(4, "main", 1, 3, [(1, 10)], 1_010),
]


def test_proof_that_lacks_what_owners_published_promotes_nothing_until_the_loss_is_accepted() -> None:
    async def story(site: Site) -> None:
        site.servers.shards_without_tables.add(4)
        done = await site.rounds(9)
        assert done.entry.state is PrimaryState.FENCED
        assert isinstance(done.step, AwaitChange)
        [missing] = done.step.missing
        assert missing == (
            "r2 lacks what owners of these shards published: 1 (flush 6 of epoch 9; there: flush 4 of epoch 9), 4 (flush 1 of "
            "epoch 1; there: none); so commits of r1 returned without an ack. If r1 is there, use foqs database abort; otherwise "
            "accept the loss with foqs database promote"
        )
        await change_primary(site.registry, "main", accept_loss)
        assert (await site.rounds(3)).entry.state is PrimaryState.PROMOTING
        assert [(each.epoch, each.lost) for each in (await site.report()).left] == [
            (9, LostRange(2, 0, 1_060)),
            (9, LostRange(40, 400, None)),
            (0, LostRange(1, 10, None)),
        ]

    on_site(story, LACKING)


def test_refusal_by_what_owners_published_is_looked_at_again_after_a_while_only() -> None:
    async def story(site: Site) -> None:
        refused = (await site.rounds(9)).step
        assert isinstance(refused, AwaitChange)
        assert site.reads == 1
        assert (await site.rounds(100)).step == refused
        assert site.reads == 1
        site.now_ms = 30_000
        assert (await site.rounds(100)).step == refused
        assert site.reads == 2
        # Another version of the entry is judged at once.
        await change_primary(site.registry, "main", abort)
        await change_primary(site.registry, "main", start_revoking)
        await site.rounds(9)
        assert site.reads == 3

    on_site(story, LACKING)


def test_shard_that_was_added_in_another_database_is_not_compared_with_what_was_published_before() -> None:
    async def story(site: Site) -> None:
        assert (await site.rounds(9)).entry.state is PrimaryState.PROMOTING

    on_site(story, [ShardPosition(4, "former", 77, 3, [(1, 10)], 1_010)])


def test_report_names_no_maximum_while_a_published_document_cannot_be_read() -> None:
    async def story(site: Site) -> None:
        await site.registry.replace("positions/two", b"?", None)
        await change_primary(site.registry, "main", accept_loss)
        done = await site.rounds(9)
        assert done.entry.state is PrimaryState.PROMOTING
        assert [(each.shard, each.lost) for each in (await site.report()).left] == [
            (1, LostRange(2, 0, None)),
            (2, LostRange(40, 400, None)),
            # The row has a later epoch than what is published: its owner may have published in the other document.
            (4, None),
        ]

    on_site(story, LACKING)


def test_owner_row_that_cannot_be_read_stops_no_promotion_and_is_named() -> None:
    async def story(site: Site) -> None:
        site.servers.unread_shards[1] = "table is marked as crashed"
        begun = [await site.rounds(1) for _ in range(9)]
        assert begun[-1].entry.state is PrimaryState.PROMOTING
        said = {text for done in begun for text in done.problems.values()}
        assert said >= {
            "r2: the owner rows of shards 1 cannot be read (table is marked as crashed), so these shards are not compared"
        }

    on_site(story, LACKING[:2])


def test_row_that_is_held_for_a_moment_is_in_the_report_of_an_accepted_loss() -> None:
    """The next owner changes it, so it cannot be read later."""

    async def story(site: Site) -> None:
        site.servers.unread_shards[2] = "somebody holds the table"
        await change_primary(site.registry, "main", accept_loss)
        assert (await site.rounds(9)).entry.state is PrimaryState.FENCED
        site.servers.unread_shards.clear()
        assert (await site.rounds(2)).entry.state is PrimaryState.PROMOTING
        assert [(each.shard, each.problem) for each in (await site.report()).left] == [(1, ""), (2, ""), (4, "")]

    on_site(story, LACKING)


def test_report_of_an_accepted_loss_names_the_shards_whose_owner_rows_cannot_be_read() -> None:
    async def story(site: Site) -> None:
        site.servers.unread_shards[2] = "table is marked as crashed"
        await change_primary(site.registry, "main", accept_loss)
        waiting = await site.rounds(9)
        assert waiting.entry.state is PrimaryState.FENCED
        assert "the owner rows of shards 2 cannot be read (table is marked as crashed)" in progress_text(waiting)
        site.now_ms += 10_000
        assert (await site.rounds(2)).entry.state is PrimaryState.PROMOTING
        report = await site.report()
        assert [(each.shard, each.flush, each.lost, each.problem) for each in report.left] == [
            (1, 4, LostRange(2, 0, 1_060), ""),
            (2, 0, None, "table is marked as crashed"),
            (4, 4, LostRange(0, 0, 0), ""),
        ]

    on_site(story, LACKING)
