"""A planned move is refused before it harms, can be started again by anybody, and is run by one promoter at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final

import pytest

from shardmgr.primary import DatabaseServer, LossPolicy, Primary, PrimaryState, ReplicationPosition
from shardmgr.primary_changes import PromotionRefused, first_entry, start_drain, start_revoking
from shardmgr.primary_document import read_primary, replace_primary
from shardmgr.primary_moves import (
    ELECTION_FOLDER,
    check_reached,
    drained_to,
    has_moved,
    is_at_rest,
    move_to,
    progress_text,
    reached_in,
    run_promoter,
    server_in,
    serves_outside,
    start_move,
)
from shardmgr.promoter import ElectedPromoter, Promoter, PromoterRound
from shardmgr.promotion import AwaitChange, PromotionStep, ReplaceEntry, SendCommand, ServerCommand
from shardmgr.registry.port import Registry
from tests.support.local_ensemble import LocalEnsemble
from tests.support.plain_database_servers import SERVER_IDS, PlainDatabaseServers
from tests.support.plain_regions import REGIONS, World

SERVERS: Final = {name: DatabaseServer(f"region-{name}", number) for name, number in SERVER_IDS.items()}
ENTRY: Final = Primary(3, "r1", LossPolicy.SEMI_SYNC, {"r2": "1.1", "r3": "1.1"}, servers=SERVERS)
DRAINING: Final = move_to(ENTRY, "region-r2")
FENCED: Final = replace(DRAINING, state=PrimaryState.FENCED, position=ReplicationPosition())
PROMOTING: Final = replace(
    FENCED, state=PrimaryState.PROMOTING, term=4, server="r2", target="", ackers={"r3": ""}, has_served=False
)


def test_move_drains_the_primary_to_the_server_of_the_region() -> None:
    assert (DRAINING.state, DRAINING.target) == (PrimaryState.DRAINING, "r2")
    assert server_in(ENTRY, "region-r3") == "r3"


@pytest.mark.parametrize("entry", [DRAINING, FENCED, PROMOTING, replace(PROMOTING, state=PrimaryState.SERVING)])
def test_move_that_is_started_again_goes_on(entry: Primary) -> None:
    assert move_to(entry, "region-r2") is entry


@pytest.mark.parametrize(
    ("entry", "region", "reason"),
    [
        (ENTRY, "moon", "no server in region moon; it has some in region-r1, region-r2, region-r3"),
        (replace(ENTRY, ackers={"r2": "", "r3": "1.1"}), "region-r2", "r2 has not received all that r1 has"),
        (replace(ENTRY, ackers={"r2": "1.1"}), "region-r3", "r3 is no acker of the database"),
        (DRAINING, "region-r3", "draining already"),
        (PROMOTING, "region-r3", "promoting already"),
        (start_revoking(DRAINING), "region-r2", "revoking already"),
    ],
)
def test_move_is_refused_with_what_is_missing(entry: Primary, region: str, reason: str) -> None:
    with pytest.raises(PromotionRefused, match=reason):
        move_to(entry, region)


@pytest.mark.parametrize(
    ("entry", "region"),
    [
        (ENTRY, "region-r2"),
        (replace(ENTRY, ackers={"r2": "", "r3": "1.1"}), "region-r3"),
        (DRAINING, "region-r2"),
        (PROMOTING, "region-r2"),
    ],
)
def test_drained_region_gives_its_primary_to_an_acker_that_has_all(entry: Primary, region: str) -> None:
    assert not serves_outside(entry, "region-r1")
    assert drained_to(entry, "region-r1") == region
    assert serves_outside(ENTRY, "region-r3")


@pytest.mark.parametrize(
    ("entry", "region", "reason"),
    [
        (replace(ENTRY, ackers={"r2": "", "r3": ""}), "region-r1", "no acker outside of region-r1"),
        (replace(ENTRY, ackers={"r2": "1.1"}), "region-r1", "would acknowledge for r2"),
        (DRAINING, "region-r2", "draining, with a target in region-r2"),
    ],
)
def test_drain_is_refused_with_what_is_missing(entry: Primary, region: str, reason: str) -> None:
    with pytest.raises(PromotionRefused, match=reason):
        drained_to(entry, region)


def test_drained_region_may_be_switched_off_afterwards() -> None:
    """An acker that is dead has its standing, and acknowledges for nobody."""
    with pytest.raises(PromotionRefused, match=r"would acknowledge for r2 \(r3 is not reached\); let one rejoin"):
        drained_to(ENTRY, "region-r1", ["r1", "r2"])
    with pytest.raises(PromotionRefused, match=r"wait until one has \(r2 is not reached, r3 is not reached\)"):
        drained_to(ENTRY, "region-r1", ["r1"])
    assert drained_to(replace(ENTRY, policy=LossPolicy.ASYNC), "region-r1", ["r1", "r3"]) == "region-r3"
    servers = {**SERVERS, "r4": DatabaseServer("region-r4", 14)}
    four = replace(ENTRY, ackers={"r2": "1.1", "r3": "1.1", "r4": "1.1"}, servers=servers)
    assert drained_to(four, "region-r1", ["r1", "r3", "r4"]) == "region-r3"
    assert drained_to(DRAINING, "region-r1", ["r1"]) == "region-r2"


class Site:
    """A database whose replicas run at each pause and after each round."""

    def __init__(self, one: Registry, two: Registry) -> None:
        self.one, self.two = one, two
        self.world = World(first_entry("r1", LossPolicy.SEMI_SYNC, SERVERS))
        self.lines: list[str] = []

    def promoter(self, registry: Registry) -> Promoter:
        async def are_shards_free(entry: Primary) -> bool:
            return True

        return Promoter(registry, "main", PlainDatabaseServers(self.world, "r2"), are_shards_free)

    def replicate(self) -> None:
        for name in REGIONS:
            self.world.receive(name)
            self.world.servers[name].apply_next()
        for ack in list(self.world.acks):
            self.world.deliver(ack)

    async def run(self, registry: Registry, nonce: str, is_done: Callable[[PromoterRound], bool]) -> None:
        def after(done: PromoterRound) -> bool:
            self.lines.append(progress_text(done))
            self.replicate()
            return is_done(done)

        async def pause(_: PromoterRound | None) -> None:
            self.replicate()
            await asyncio.sleep(0)

        promoter = self.promoter(registry)
        await run_promoter(registry, "main", nonce, promoter, after, pause, lambda: 0)
        await promoter.close()

    async def entry(self) -> Primary:
        found = await read_primary(self.one, "main")
        assert found is not None
        return found.entry


def on_site(story: Callable[[Site], Awaitable[None]]) -> None:
    async def main() -> None:
        ensemble = LocalEnsemble(None, lambda: 0)
        one, two = ensemble.registry(6_000), ensemble.registry(6_000)
        for registry in (one, two):
            await registry.open()
        site = Site(one, two)
        await replace_primary(one, "main", site.world.entry, None)
        await story(site)
        for registry in (one, two):
            await registry.close()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_database_is_at_rest_although_an_acker_without_a_standing_is_lost() -> None:
    lost = replace(ENTRY, ackers={"r2": "1.1", "r3": ""})
    assert is_at_rest(PromoterRound(ENTRY, AwaitChange()))
    assert not is_at_rest(PromoterRound(lost, AwaitChange()))
    assert is_at_rest(PromoterRound(lost, AwaitChange(), {"r3": "it is not reached"}))
    follow = SendCommand("r3", ServerCommand.FOLLOW, "r1")
    assert not is_at_rest(PromoterRound(lost, follow))
    assert is_at_rest(PromoterRound(lost, follow, complaints={"r3": "its reception ended: 1236"}))


def test_database_whose_primary_is_not_reached_is_not_at_rest_so_no_move_begins() -> None:
    assert not is_at_rest(PromoterRound(ENTRY, AwaitChange(("r1 is not reached",)), {"r1": "it is not reached"}))


def test_move_of_a_process_that_dies_at_each_step_is_finished_by_another_one() -> None:
    async def story(site: Site) -> None:
        await site.run(site.one, "n1", is_at_rest)
        await start_move(site.one, "main", "region-r3")
        processes = 0
        while not has_moved(await site.entry(), "region-r3"):
            await start_move(site.two, "main", "region-r3")
            await site.one.withdraw(ELECTION_FOLDER, "main")
            await site.run(site.one, f"process {processes}", lambda done: not done.is_waiting)
            processes += 1
        assert processes > 4
        assert (await site.entry()).term == 2
        assert any("waits" not in line and "now fenced in term 1" in line for line in site.lines)

    on_site(story)


def test_promoter_that_is_not_elected_does_nothing_until_the_other_one_has_ended() -> None:
    async def story(site: Site) -> None:
        await site.two.announce(ELECTION_FOLDER, "main", b"other")
        waiting = asyncio.ensure_future(site.run(site.one, "n1", is_at_rest))
        for _ in range(20):
            await asyncio.sleep(0)
        assert set(site.lines) == {"draining: waits: another process promotes it, or is to be elected"}
        await site.two.withdraw(ELECTION_FOLDER, "main")
        await waiting
        assert has_moved(await site.entry(), "region-r1")

    on_site(story)


def test_step_without_an_effect_is_repeated_after_a_pause() -> None:
    async def story(site: Site) -> None:
        await site.run(site.one, "n1", is_at_rest)
        # A commit that waits for its ack keeps the primary from becoming read-only.
        site.world.servers["r1"].append(flush=1)
        for name in ("r2", "r3"):
            site.world.servers[name].kill9()
        await start_move(site.one, "main", "region-r2")
        waits: list[int] = []
        promoter = site.promoter(site.one)

        async def pause(_: PromoterRound | None) -> None:
            waits.append(len(site.lines))

        def is_done(done: PromoterRound) -> bool:
            site.lines.append(progress_text(done))
            return len(waits) == 3

        site.lines.clear()
        await run_promoter(site.one, "main", "n1", promoter, is_done, pause, lambda: 0)
        await promoter.close()
        assert len(site.lines) <= 5
        assert {line.split(" (")[0] for line in site.lines} == {"draining: r1: make read-only"}

    on_site(story)


def test_replicas_that_are_refused_are_asked_alternately_with_pauses() -> None:
    async def story(site: Site) -> None:
        await site.run(site.one, "n1", is_at_rest)
        for name in ("r2", "r3"):
            diverged = site.world.servers[name]
            diverged.log.pop()
            diverged.append(flush=1)
        site.replicate()
        steps: list[PromotionStep] = []
        promoter = site.promoter(site.one)

        def is_done(done: PromoterRound) -> bool:
            steps.append(done.step)
            if len(steps) % 2 == 0:
                site.replicate()  # the refusal comes while the other one connects
            return len(steps) == 20

        paused: list[int] = []

        async def pause(_: PromoterRound | None) -> None:
            paused.append(len(steps))

        await run_promoter(site.one, "main", "n1", promoter, is_done, pause, lambda: 0)
        await promoter.close()
        r2, r3 = (SendCommand(name, ServerCommand.FOLLOW, "r1") for name in ("r2", "r3"))
        assert steps == [r2, r3] * 10
        assert paused == [*range(3, 20)]

    on_site(story)


def test_progress_says_what_was_done_and_what_is_waited_for() -> None:
    def text(step: SendCommand | ReplaceEntry | AwaitChange, **problems: str) -> str:
        return progress_text(PromoterRound(DRAINING, step, problems))

    assert text(SendCommand("r3", ServerCommand.FOLLOW, "r2")) == "draining: r3: follow r2"
    assert text(ReplaceEntry(FENCED)) == "draining: now fenced in term 3"
    assert text(AwaitChange(("a", "b")), r1="r1: gone") == "draining: waits: a; b (r1: gone)"
    assert text(AwaitChange()) == "draining: at rest"
    complaining = PromoterRound(DRAINING, AwaitChange(), complaints={"r2": "its SQL thread stands"})
    assert progress_text(complaining) == "draining: at rest (r2: its SQL thread stands)"


def test_promoter_that_is_not_elected_says_what_the_other_one_does_and_when_that_is_at_rest() -> None:
    async def story(site: Site) -> None:
        seen: list[str] = []

        async def watch() -> None:
            def after(done: PromoterRound) -> bool:
                assert done.elected is not None
                seen.append(progress_text(done))
                return done.entry.is_serving and is_at_rest(done)

            async def pause(_: PromoterRound | None) -> None:
                await asyncio.sleep(0)

            promoter = site.promoter(site.two)
            await run_promoter(site.two, "main", "n2", promoter, after, pause, lambda: 0)
            await promoter.close()

        elected = asyncio.Event()

        def is_over(done: PromoterRound) -> bool:
            elected.set()
            return watching.done()

        async def when_elected() -> None:
            await elected.wait()
            await watch()

        watching = asyncio.ensure_future(when_elected())
        await asyncio.gather(site.run(site.one, "n1", is_over), watching)
        assert seen[-1] == "serving: at rest"
        assert all((await site.entry()).ackers.values())

    on_site(story)


def test_command_is_the_promoter_only_after_nobody_else_was_for_a_time() -> None:
    async def story(site: Site) -> None:
        now_ms = 0
        elected: list[tuple[int, bool]] = []

        def after(done: PromoterRound) -> bool:
            elected.append((now_ms, done.elected is None))
            return done.elected is None

        async def pause(_: PromoterRound | None) -> None:
            nonlocal now_ms
            now_ms += 1_000
            if now_ms == 3_000:
                await site.two.announce(
                    ELECTION_FOLDER, "main", b'{"nonce":"n2","version":0,"at_rest":false,"text":""}'
                )
            if now_ms == 20_000:
                await site.two.withdraw(ELECTION_FOLDER, "main")

        promoter = site.promoter(site.one)
        await run_promoter(site.one, "main", "n1", promoter, after, pause, lambda: now_ms, vacant_ms=8_000)
        await promoter.close()
        assert elected == [*((ms, False) for ms in range(0, 27_000, 1_000)), (27_000, True)]

    on_site(story)


def test_promoter_is_closed_while_another_one_is_elected(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(site: Site) -> None:
        events: list[str] = []
        promoter = site.promoter(site.one)

        async def close() -> None:
            events.append("closed")

        def after(done: PromoterRound) -> bool:
            events.append("own round" if done.elected is None else "round of another")
            return done.elected is not None

        async def pause(_: PromoterRound | None) -> None:
            await site.one.withdraw(ELECTION_FOLDER, "main")
            await site.two.announce(ELECTION_FOLDER, "main", b'{"nonce":"n2","version":0,"at_rest":false,"text":""}')

        with monkeypatch.context() as patch:
            patch.setattr(promoter, "close", close)
            await run_promoter(site.one, "main", "n1", promoter, after, pause, lambda: 0)
        await promoter.close()
        assert events[-3:] == ["own round", "closed", "round of another"]

    on_site(story)


def test_primary_does_not_move_to_a_server_that_is_not_reached() -> None:
    """Its shards would be taken away, and nobody could have them until it is back."""
    entry = Primary(2, "r1", LossPolicy.ASYNC, {"r2": "1.1", "r3": "1.1"}, servers=SERVERS)
    own = PromoterRound(entry, AwaitChange(), reached=["r1", "r3"])
    watched = replace(own, reached=[], elected=ElectedPromoter("n", reached=("r1", "r3")))
    for done in (own, watched):
        reached = reached_in(done)
        with pytest.raises(PromotionRefused, match="r2 is not reached, so the database would wait for it"):
            check_reached(entry, "region-r2", reached)
        check_reached(entry, "region-r3", reached)
        check_reached(entry, "region-r1", reached)
        check_reached(start_drain(entry, "r2"), "region-r2", reached)
    check_reached(entry, "region-r2", reached_in(replace(own, elected=ElectedPromoter("n"))))


def test_publication_of_another_form_says_only_that_somebody_is_elected() -> None:
    async def story(site: Site) -> None:
        await site.two.announce(ELECTION_FOLDER, "main", b'{"nonce":7}')
        waits = 0

        async def pause(done: PromoterRound | None) -> None:
            nonlocal waits
            waits += 1
            assert done is not None
            assert progress_text(done) == "draining: waits: another process promotes it, or is to be elected"
            assert not is_at_rest(done)

        promoter = site.promoter(site.one)
        await run_promoter(site.one, "main", "n1", promoter, lambda _: waits > 2, pause, lambda: 0)
        assert waits == 3

    on_site(story)


def test_what_the_elected_promoter_does_is_published_again_in_its_next_session() -> None:
    async def story(site: Site) -> None:
        await site.run(site.one, "n1", is_at_rest)
        found = (await site.one.members(ELECTION_FOLDER))["main"]
        assert b'"at_rest": true' in found
        await site.one.withdraw(ELECTION_FOLDER, "main")
        await site.run(site.one, "n1", is_at_rest)
        assert (await site.one.members(ELECTION_FOLDER))["main"] == found

    on_site(story)


def test_text_that_counts_is_published_at_most_once_a_second() -> None:
    async def story(site: Site) -> None:
        await site.run(site.one, "n1", is_at_rest)
        published: list[bytes] = []
        now_ms, lag = 0, 0

        class Counted(Promoter):
            async def run_round(self) -> PromoterRound:
                return PromoterRound(DRAINING, AwaitChange((f"it lacks {lag} transactions",)), version=3)

        class Watched:
            def __getattr__(self, name: str) -> Any:
                return getattr(site.one, name)

            async def announce(self, folder: str, name: str, data: bytes) -> None:
                published.append(data)
                await site.one.announce(folder, name, data)

        async def pause(_: PromoterRound | None) -> None:
            nonlocal now_ms, lag
            now_ms, lag = now_ms + 100, lag + 1

        async def are_shards_free(entry: Primary) -> bool:
            return True

        promoter = Counted(site.one, "main", PlainDatabaseServers(site.world, "r1"), are_shards_free)
        await run_promoter(Watched(), "main", "n1", promoter, lambda _: lag == 50, pause, lambda: now_ms)
        assert [b"lacks %d " % count in data for count, data in zip(range(0, 50, 10), published, strict=False)] == [
            True
        ] * 5
        assert len(published) <= 6

    on_site(story)
