"""Checks what is always true of a host's parts after each flush.

`check` of `OwnedShard` and `Placement` compares the parts with each other. `differences` of `memory_check` compares
the memory with the tables, such as the lease ends with the LEASED rows. The simulation (`cluster.py`) and the unit
tests that run an engine (`engines.py`) use it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from foqs.queue.engine import Engine
from foqs.shard.observer import NullObserver
from foqs.shard.shard import OwnedShard
from foqs.store.in_memory.memory_table import ShardTables
from tests.support.memory_check import differences, is_up_to_date

COMPARED_EVERY: Final = 8
"""The tables are compared after every flush whose number this divides: that takes longer than all checks together."""


class CheckedShards(NullObserver):
    """Checks a shard of an engine, and the engine's placement, whenever a flush of it was applied.

    Args:
        engine: returns the engine; None before it is there.
        tables: returns the tables of a shard.
        on_broken: called with what is not true.
    """

    def __init__(
        self,
        engine: Callable[[], Engine | None],
        tables: Callable[[int], ShardTables],
        on_broken: Callable[[str], None],
    ) -> None:
        self._engine = engine
        self._tables = tables
        self._on_broken = on_broken

    def flush_committed(self, shard: int, entry_count: int, seconds: float) -> None:
        engine = self._engine()
        served = None if engine is None else engine.shards.get(shard)
        if engine is None or served is None:
            return
        try:
            served.check()
            engine.queue.placement.check()
        except AssertionError as broken:
            self._on_broken(f"shard {shard}: {broken}")
        self._compare(served)

    def _compare(self, shard: OwnedShard) -> None:
        tables = self._tables(shard.number)
        if tables.owner.flush % COMPARED_EVERY == 0 and is_up_to_date(shard, tables):
            for difference in differences(shard, tables):
                self._on_broken(f"shard {shard.number}: {difference}")
