"""The states of databases are those of their entries, with the lags of this host's shards."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from foqs.cluster.database_states import database_states
from foqs.console.cluster_pages import loss_text
from foqs.queue.tier_figures import DatabaseState
from foqs_contract.errors import Unavailable
from shardmgr.layout_changes import create_layout
from shardmgr.model import Layout, ShardSpec
from shardmgr.primary import LossPolicy, Primary
from shardmgr.primary_document import replace_primary
from shardmgr.primary_moves import is_at_rest, run_promoter
from shardmgr.promoter import Promoter, PromoterRound
from tests.support.local_ensemble import LocalEnsemble
from tests.support.plain_database_servers import PlainDatabaseServers
from tests.support.plain_regions import World
from tests.unit.cluster.test_position_publisher import ENTRY
from tests.unit.shardmgr.test_primary_moves import SERVERS


def test_databases_with_an_entry_are_shown_with_the_lags_of_this_host() -> None:
    async def story() -> None:
        registry = LocalEnsemble(None, lambda: 0).registry(6_000)
        await registry.open()
        await replace_primary(registry, "main", ENTRY, None)
        positions = SimpleNamespace(
            lags_ms=lambda: {("main", "b"): 70, ("else", "b"): 900}, bounds_ms=lambda: {"main": 10_000}
        )
        layout = Layout({1: ShardSpec(1, "main"), 2: ShardSpec(2, "plain"), 3: ShardSpec(3, "main")})
        membership = SimpleNamespace(
            registry=registry,
            agent=SimpleNamespace(view=None),
            positions=None,
            promoters=SimpleNamespace(databases=["main"]),
        )

        async def found() -> object:
            return await database_states(cast(Any, membership))

        assert await found() == []
        membership.agent.view = SimpleNamespace(layout=layout)
        assert ENTRY.policy is LossPolicy.ASYNC
        state = DatabaseState("main", "r-a", "a", 3, "serving", True, {"b": None, "c": None}, {}, None)
        assert await found() == [state]
        membership.positions = positions
        [shown] = cast(Any, await found())
        assert (shown.lags_ms, shown.max_lag_ms) == ({"b": 70}, 10_000)
        await registry.close()
        with pytest.raises(Unavailable, match="the servers of databases are not known"):
            await found()
        membership.promoters.databases = []
        assert await found() == []  # ZooKeeper is not asked

    asyncio.run(asyncio.wait_for(story(), 60))


def test_acker_that_has_died_is_not_shown_as_proven_although_its_standing_is_in_the_entry() -> None:
    async def story() -> None:
        registry = LocalEnsemble(None, lambda: 0).registry(6_000)
        await registry.open()
        await create_layout(registry, [ShardSpec(1, "main")])
        world = World(Primary(1, "r1", LossPolicy.SEMI_SYNC, {"r2": "", "r3": ""}, servers=SERVERS))
        await replace_primary(registry, "main", world.entry, None)
        primary = world.servers["r1"]
        primary.append(term=1)
        primary.is_read_only, primary.waits_for_acks, primary.freed = False, True, 1

        async def are_shards_free(entry: Primary) -> bool:
            return False

        async def pause(_: PromoterRound | None) -> None:
            for name in ("r2", "r3"):
                world.receive(name)
                world.servers[name].apply_next()

        promoter = Promoter(registry, "main", PlainDatabaseServers(world, "r2"), are_shards_free)

        async def run_until(is_done: Callable[[PromoterRound], bool]) -> DatabaseState:
            await run_promoter(registry, "main", "n1", promoter, is_done, pause, lambda: time.monotonic_ns() // 1_000)
            view = SimpleNamespace(layout=Layout({1: ShardSpec(1, "main")}))
            promoters = SimpleNamespace(databases=["main"])
            membership = SimpleNamespace(
                registry=registry, agent=SimpleNamespace(view=view), positions=None, promoters=promoters
            )
            [state] = await database_states(cast(Any, membership))
            return state

        sound = await run_until(is_at_rest)
        assert (sound.replicas, loss_text(sound)) == ({"r2": True, "r3": True}, "nothing that was acknowledged")
        world.servers["r3"].kill9()
        hurt = await run_until(lambda done: "r3" not in done.reached)
        assert (hurt.replicas, loss_text(hurt)) == (
            {"r2": True, "r3": False},
            "hosts would not replace it: r3 is not reached",
        )
        await promoter.close()

    asyncio.run(asyncio.wait_for(story(), 60))
