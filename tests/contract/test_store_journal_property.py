"""Rows and journal of a real store hold what tables hold that are written through, whatever breaks. Run on all stores.

Random batches, write-backs and trims; connections that break at any point of a flush; owners that end
there, and new ones that replay the journal. The memory store plays many more of these histories in
tests/unit/core/journal/test_flush_journal.py.
"""

from __future__ import annotations

from random import Random

import pytest

from foqs.store.port import Store
from tests.contract.conftest import SHARD, Bench
from tests.support.journal_owner import RandomFaults, play_history

pytestmark = pytest.mark.rows_only("it writes journal rows by itself")


@pytest.mark.parametrize("seed", range(3))
def test_items_survive_lost_connections_and_owners_that_end_at_any_point(bench: Bench, seed: int) -> None:
    async def open_store(faults: RandomFaults) -> Store:
        store = bench.store(SHARD, faults)
        await store.open()
        return store

    assert bench.run(play_history(Random(seed), open_store, 40), 300) > 1
