"""Bugs to plant, to show that the simulation would find them.

Each is the mistake that a rule of the design prevents, made in one place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from foqs.core import life
from foqs.core.fence import Fence, Standing
from foqs.core.item import State
from foqs.core.life import Event, Fate, Kind, Moment, Verdict
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
        self: Any, fence: Fence, touched: Sequence[int], loaded: Sequence[int], decide: Decide
    ) -> None:
        old = self._table.owner
        self._table.owner = replace(old, epoch=fence.epoch, nonce=fence.nonce, flush=fence.flush - 1)
        await original(self, fence, touched, loaded, decide)

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
        await self._apply(connection, fence, writes)

    memory.MemoryStore._commit = commit  # type: ignore[method-assign]


def lease_from_enqueue() -> None:
    """The lease is counted from the moment the item was enqueued."""

    def hand_out(event: Event, row: Any, moment: Moment) -> Verdict:
        verdict = original(event, row, moment)
        if verdict.row is not None:
            verdict.row.due_ms = row.enqueued_at_ms + (event.lease_ms or row.lease_ms)
        return verdict

    original = life.TABLE[State.READY, Kind.HAND_OUT].decide
    _rule(Kind.HAND_OUT, State.READY, hand_out)


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


BUGS: Final[Mapping[str, Callable[[], None]]] = {
    "no-fence": no_fence,
    "token-ignored": token_ignored,
    "reply-before-commit": reply_before_commit,
    "lease-from-enqueue": lease_from_enqueue,
    "rerun-unread": rerun_unread,
}


def plant(name: str) -> None:
    """Plants one bug for the rest of this process."""
    BUGS[name]()
