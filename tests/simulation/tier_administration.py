"""A cluster of two tiers under virtual time: `python -m tests.simulation.tier_administration --seeds 20 --base 0`.

Clients create, fill, empty and delete namespaces through random hosts of the right
and of the wrong tier. At the end every item is in the tier of its namespace, and its
namespace exists, so it can be reached. Exits 1 if a seed breaks that. Hosts are not
killed here; the other simulations do that.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import sys
from collections.abc import Sequence
from random import Random
from typing import Final

from foqs.catalog.document import Document, NamespaceRecord, parse, render
from foqs.catalog.registry_catalog import DOCUMENT_NAME as CATALOG
from foqs.core.items.item import format_id
from foqs_contract.errors import FoqsError
from tests.simulation import planted_tiers
from tests.support.cluster_world import ClusterWorld
from tests.support.engines import Caller
from tests.support.virtual_time import run_virtual

TIERS: Final = ("fast", "slow")
OLD: Final = "old"
"""A namespace of an older version, which recorded no tier: every tier accepts its items."""
NAMES: Final = ("red", "blue", OLD)
_DEEDS: Final = 60
_CLIENTS: Final = 3


def play(seed: int) -> tuple[list[str], int]:
    """Play one seed. Returns the violations and the number of enqueued items."""
    found: list[str] = []
    made = 0

    async def main() -> None:
        nonlocal made
        world = ClusterWorld(4, TIERS)
        await world.set_up()
        document = Document(1, {OLD: NamespaceRecord()})
        await world.administrator.replace(CATALOG, render(document).encode(), None)
        hosts = [await world.host(tier) for tier in TIERS]
        await world.wait_until_settled(*hosts)
        rngs = [Random(f"{seed}/{number}") for number in range(_CLIENTS)]
        made = sum(await asyncio.gather(*(_client(world, rng) for rng in rngs)))
        await world.pass_s(1)
        entry = await world.administrator.read(CATALOG)
        assert entry is not None
        found.extend(_misplaced_items(world, parse(entry.data)))

    run_virtual(main, until_s=3_600.0)
    return found, made


async def _client(world: ClusterWorld, rng: Random) -> int:
    """Make random calls. Returns the number of enqueued items."""
    made = 0
    for _ in range(_DEEDS):
        host, name = rng.choice(world.hosts), rng.choice(NAMES)
        caller, admin, kind = Caller(world, host.engine, name), host.engine.admin, rng.random()
        with contextlib.suppress(FoqsError):
            host.engine.queue.namespace_settings(name)
            if kind < 0.5:
                made += len(await caller.put(count=rng.choice((1, 3))))
            elif kind < 0.7:
                for each in world.hosts:
                    caller = Caller(world, each.engine, name)
                    items = (await caller.get(count=20)).items
                    await caller.cancel(*(format_id(seen.shard, seen.row.id) for seen in items))
            elif kind < 0.9:
                await admin.delete(name, world.deadline_in(4))
        if name != OLD and kind >= 0.9:
            with contextlib.suppress(FoqsError):
                await admin.create(name, None, {}, world.deadline_in(2))
        await asyncio.sleep(rng.expovariate(20))
    return made


def _misplaced_items(world: ClusterWorld, document: Document) -> Sequence[str]:
    """Return the items that cannot be reached, or are in another tier than their namespace."""
    found = []
    for shard, table in sorted(world.database.tables.items()):
        tier = TIERS[shard % len(TIERS)]
        for number, row in sorted(table.rows.items()):
            own = document.namespaces.get(row.namespace)
            if own is None:
                found.append(f"invariant 1: item {shard}-{number} of tier {tier} is in no namespace: {row.namespace!r}")
            elif own.tier not in (None, tier):
                found.append(f"invariant 17: item {shard}-{number} is in tier {tier}, {row.namespace!r} in {own.tier}")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--base", type=int, default=0)
    parser.add_argument("--plant", choices=sorted(planted_tiers.BUGS))
    asked = parser.parse_args(arguments)
    if asked.plant is not None:
        planted_tiers.BUGS[asked.plant].plant()
    failed = items = 0
    for seed in range(asked.base, asked.base + asked.seeds):
        found, made = play(seed)
        items += made
        failed += bool(found)
        for line in found:
            print(f"seed {seed}: {line}")
    print(f"{items} items, {asked.seeds - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    sys.exit(main())
