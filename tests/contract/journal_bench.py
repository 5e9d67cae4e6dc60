"""A store with a journal, which no migration creates yet."""

from __future__ import annotations

from foqs.store.port import FaultHook, no_faults
from tests.contract.conftest import SHARD, Bench
from tests.support.journal_tables import create_journal
from tests.support.stores import NONCE, Ownership, opened


async def opened_with_journal(
    bench: Bench, epoch: int = 1, nonce: str = NONCE, shard: int = SHARD, faults: FaultHook = no_faults
) -> Ownership:
    """A new store of the bench, opened and taken over, with a journal."""
    owned = await opened(bench.store(shard, faults), epoch, nonce)
    await create_journal(owned.store, shard)
    return owned
