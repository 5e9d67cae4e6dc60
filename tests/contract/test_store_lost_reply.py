"""The result of an enqueue whose COMMIT took effect and lost its reply before a takeover. Run on all three stores."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import pytest

from foqs.core.flush.fence import Fence, Owner
from foqs.core.flush.writes import Writes
from foqs.core.items.idempotency_keys import IdempotencyKey, KeyName
from foqs.core.items.item import Row
from foqs.runtime.clock import SystemClock
from foqs.shard.observer import NullObserver
from foqs.shard.supervisor import ShardTakenOver
from foqs.store.port import Decide, Store, StoreLost
from foqs_contract.errors import UnknownOutcome
from shardmgr.local_coordinator import LocalCoordinator
from tests.contract.conftest import SHARD, Bench
from tests.support.aio import call_result
from tests.support.builders import MemoryEpochBook, catalog, engine_settings, new_item
from tests.support.engines import make_engine
from tests.support.stores import OTHER, Ownership, contents, opened

_LATER_EPOCH = 9


class _Loser:
    """Loses the reply to the first COMMIT with new items, and lets another owner take over before the owner row is read."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._inserting = False
        self.next: Ownership | None = None
        """The other owner."""

    def store(self) -> Store:
        store = self._bench.make(SHARD, self._lose)
        flush, owner = store.flush, store.read_owner

        async def watched(
            fence: Fence,
            row_ids: Sequence[int],
            payload_limits: Mapping[int, int],
            key_names: Sequence[KeyName],
            decide: Decide,
        ) -> None:
            def decided(rows: Mapping[int, Row], found: Mapping[KeyName, IdempotencyKey]) -> Writes:
                writes = decide(rows, found)
                self._inserting = bool(writes.inserts)
                return writes

            await flush(fence, row_ids, payload_limits, key_names, decided)

        async def late() -> Owner:
            self.next = await opened(self._bench.store(), _LATER_EPOCH, OTHER)
            return await owner()

        store.flush = watched  # type: ignore[method-assign]
        store.read_owner = late  # type: ignore[method-assign]
        return store

    def _lose(self, point: str) -> None:
        if point == "committed" and self._inserting:
            raise StoreLost("the reply is lost")


def test_enqueue_that_committed_before_a_takeover_and_lost_its_reply_is_unknown(bench: Bench) -> None:
    loser = _Loser(bench)

    async def story() -> None:
        engine = make_engine(
            engine_settings(SHARD),
            lambda shard, *_: loser.store(),
            LocalCoordinator(MemoryEpochBook()),
            catalog(),
            SystemClock(),
            Random(1),
            NullObserver(),
            "nonce-of-the-engine",
        )
        await engine.open()
        engine.start()
        await engine.became_ready.wait()
        deadline_s = asyncio.get_running_loop().time() + 30
        results: list[Any] = await call_result(
            lambda done: engine.queue.enqueue("default", [new_item(payload=b"mine")], deadline_s, done)
        )
        with pytest.raises(ShardTakenOver):
            await engine.run()
        await engine.abort()
        assert loser.next is not None
        assert [row.payload for row in (await contents(loser.next)).values()] == [b"mine"]
        assert [type(result) for result in results] == [UnknownOutcome]

    bench.run(story())
