"""The lease time that a delivery states, and how long the lease really lasts."""

from __future__ import annotations

import asyncio

from foqs.queue.engine import Engine
from foqs.rpc.reply_structs import delivery_struct, item_view
from tests.support.builders import engine_settings
from tests.support.engines import Caller, World, run_in_world

LEASE_MS = 10_000
SKEW_MS = 2_000


def test_lease_lasts_as_stated_while_the_shard_clock_catches_up() -> None:
    async def story(world: World) -> None:
        settings = engine_settings(1, clock_skew_ms_max=SKEW_MS, sweep_interval_ms=10**9)
        first: Engine = await world.engine(settings)
        await Caller(world, first).put(lease_ms=LEASE_MS)
        await world.pass_s(3)  # nothing is written
        # The new owner's shard clock starts behind the database's clock, and runs faster to catch up.
        caller = Caller(world, await world.engine(settings))
        seen = await caller.one()
        leased_s = world.loop.time()
        said_ms = delivery_struct(seen).lease_remaining_ms
        assert said_ms is not None
        assert said_ms == item_view(seen, False).lease_remaining_ms
        again = asyncio.ensure_future(caller.get(wait_ms=20_000, timeout_s=30))
        assert len((await again).items) == 1
        kept_ms = (world.loop.time() - leased_s) * 1_000
        assert kept_ms < LEASE_MS - 300
        assert kept_ms - 100 < said_ms <= kept_ms

    run_in_world(story)


def test_delivery_states_the_full_lease_after_the_shard_clock_caught_up() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        await caller.put(lease_ms=LEASE_MS)
        said_ms = delivery_struct(await caller.one()).lease_remaining_ms
        assert said_ms is not None
        assert LEASE_MS - 20 <= said_ms <= LEASE_MS

    run_in_world(story)
