"""The states of databases are those of their entries, with the lags of this host's shards."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from foqs.cluster.database_states import database_states
from foqs.queue.tier_figures import DatabaseState
from foqs_contract.errors import Unavailable
from shardmgr.model import Layout, ShardSpec
from shardmgr.primary import LossPolicy
from shardmgr.primary_document import replace_primary
from tests.support.local_ensemble import LocalEnsemble
from tests.unit.cluster.test_position_publisher import ENTRY


def test_databases_with_an_entry_are_shown_with_the_lags_of_this_host() -> None:
    async def story() -> None:
        registry = LocalEnsemble(None, lambda: 0).registry(6_000)
        await registry.open()
        await replace_primary(registry, "main", ENTRY, None)
        positions = SimpleNamespace(
            lags_ms=lambda: {("main", "b"): 70, ("else", "b"): 900}, bounds_ms=lambda: {"main": 10_000}
        )
        layout = Layout({1: ShardSpec(1, "main"), 2: ShardSpec(2, "plain"), 3: ShardSpec(3, "main")})
        membership = SimpleNamespace(registry=registry, agent=SimpleNamespace(view=None), positions=None)

        async def found() -> object:
            return await database_states(cast(Any, membership))

        assert await found() == []
        membership.agent.view = SimpleNamespace(layout=layout)
        assert ENTRY.policy is LossPolicy.ASYNC
        state = DatabaseState("main", "r-a", "a", 3, "serving", True, {"b": False, "c": False}, {}, None)
        assert await found() == [state]
        membership.positions = positions
        [shown] = cast(Any, await found())
        assert (shown.lags_ms, shown.max_lag_ms) == ({"b": 70}, 10_000)
        await registry.close()
        with pytest.raises(Unavailable, match="the servers of databases are not known"):
            await found()

    asyncio.run(asyncio.wait_for(story(), 60))
