"""Bugs to plant, to show that the simulation would find them.

Each is the mistake that a rule of the design prevents, made in one place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from foqs.core import flush, life
from foqs.core.batch import Batch
from foqs.core.fence import Fence, Standing
from foqs.core.flush import Decision
from foqs.core.item import Key, Row, State
from foqs.core.keys import KeyRow
from foqs.core.life import Event, Fate, Kind, Moment, Verdict
from foqs.core.ready import ReadyIndex, Refill
from foqs.core.rows import Load, RowCache
from foqs.shard import writer
from foqs.shard.writer import Writer
from foqs.store import memory
from foqs.store.port import Decide, StoreLost


def _rule(kind: Kind, state: State, decide: Callable[[Event, Any, Moment], Verdict]) -> None:
    table: dict[Any, Any] = dict(life.TABLE)
    table[state, kind] = replace(table[state, kind], decide=decide)
    life.TABLE = table  # type: ignore[misc]


def no_fence() -> None:
    """Every owner writes, also one that was replaced."""

    async def flush_locked(
        self: Any, fence: Fence, touched: Sequence[int], loaded: Sequence[int], keys: Any, decide: Decide
    ) -> None:
        old = self._table.owner
        self._table.owner = replace(old, epoch=fence.epoch, nonce=fence.nonce, flush=fence.flush - 1)
        await original(self, fence, touched, loaded, keys, decide)

    original = memory.MemoryStore._flush_locked
    memory.MemoryStore._flush_locked = flush_locked  # type: ignore[method-assign]


def token_ignored() -> None:
    """Whoever acks, acks."""
    for state in State:
        _rule(Kind.ACK, state, lambda event, row, moment: Verdict(Fate.GONE))


def reply_before_commit() -> None:
    """The caller hears of success when the flush is sent, not when it is committed."""

    async def commit(self: Any, fence: Fence, writes: Any) -> None:
        self._committing = self._connection
        task = asyncio.ensure_future(late(self, self._connection, fence, writes))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.sleep(0)

    async def late(self: Any, connection: int, fence: Fence, writes: Any) -> None:
        await asyncio.sleep(0.02)
        await self._apply(connection, fence, writes, asyncio.get_running_loop().create_future())

    memory.MemoryStore._commit = commit  # type: ignore[method-assign]


def lease_from_enqueue() -> None:
    """The lease is counted from the moment the item was enqueued."""

    def leased(self: Row, due_ms: int, token: int) -> Row:
        return original(self, self.enqueued_at_ms + self.lease_ms, token)

    original = Row.leased
    Row.leased = leased  # type: ignore[method-assign]


def rerun_unread() -> None:
    """After a lost connection the flush is simply run again, whatever the owner row says."""

    async def resolve(self: Any, fence: Fence, why: str) -> Standing:
        while True:
            try:
                owner = await self._store.owner()
            except StoreLost:
                await asyncio.sleep(0.01)
                continue
            if (owner.epoch, owner.nonce) != (fence.epoch, fence.nonce):
                return Standing.FENCED
            self.flush_number = owner.flush
            return Standing.COMMITTED if fence.clock_ms == 0 else Standing.NOT_COMMITTED

    Writer._resolve = resolve  # type: ignore[method-assign]


def reads_trusted() -> None:
    """A refill and a load take what they read, whatever was written meanwhile."""

    def end_refill(self: ReadyIndex, refill: Refill, keys: Sequence[Key], complete: bool) -> None:
        refill.noted.clear()
        refilled(self, refill, keys, complete)

    def end_load(self: RowCache, load: Load, rows: Sequence[Row]) -> None:
        self._loading.update(dict.fromkeys(load.numbers, load))
        self._forget(load.numbers)
        loaded(self, load, rows)

    refilled, loaded = ReadyIndex.end_refill, RowCache.end_load
    ReadyIndex.end_refill = end_refill  # type: ignore[method-assign]
    RowCache.end_load = end_load  # type: ignore[method-assign]


def claim_before_commit() -> None:
    """Who was claimed for items about to be inserted is answered when they are judged, not when they are committed."""

    def judge_batch(batch: Batch, *arguments: Any) -> Decision:
        decision = original(batch, *arguments)
        for claim, rows in zip(batch.claims, decision.claimed, strict=True):
            if claim.is_open:
                claim.settle(0, rows)
        return decision

    original = flush.judge_batch
    vars(writer)["judge_batch"] = judge_batch


def keys_unwritten() -> None:
    """A key is judged by those of its own flush alone: no row of it is written."""

    def rows(keys: Mapping[str, Mapping[bytes, KeyRow]]) -> list[KeyRow]:
        return []

    vars(writer)["_rows"] = rows


def keys_for_ever_replaced() -> None:
    """A key that is found is taken as if it were over."""

    def firsts(part: Any, moment: Moment, keys: Any, decision: Decision) -> list[Any]:
        over = {name: row._replace(until_ms=0) for name, row in keys.items()}
        return original(part, moment, over, decision)

    original = flush._firsts
    vars(flush)["_firsts"] = firsts


BUGS: Final[Mapping[str, Callable[[], None]]] = {
    "no-fence": no_fence,
    "token-ignored": token_ignored,
    "reply-before-commit": reply_before_commit,
    "lease-from-enqueue": lease_from_enqueue,
    "rerun-unread": rerun_unread,
    "reads-trusted": reads_trusted,
    "claim-before-commit": claim_before_commit,
    "keys-unwritten": keys_unwritten,
    "keys-replaced": keys_for_ever_replaced,
}


def plant(name: str) -> None:
    """Plants one bug for the rest of this process."""
    BUGS[name]()
