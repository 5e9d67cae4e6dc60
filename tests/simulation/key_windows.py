"""Watches that no flush gives a key to another item whose window had not ended at the flush's first attempt.

And that a key with an end is never given to a second item.

Wraps the product's methods once in a process; `EARLY` is cleared before each run. A client
cannot see it: a repeat that waits for a database may be written after the window, and its
caller does not know when the flush began. Does not change what it watches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from foqs.core.flush.batch import Batch
from foqs.core.flush.fence import Fence
from foqs.core.flush.writes import Writes
from foqs.core.items.idempotency_keys import KeyName
from foqs.shard.writer import Writer
from tests.simulation.key_repeater import WITH_END
from tests.simulation.namespace_operator import BRIEF
from tests.simulation.planting import wrap
from tests.support.faulty_database import FaultyStore

EARLY: Final[dict[str, None]] = {}
"""Violations of invariant 3."""
_numbers_of_ended: Final[dict[KeyName, int]] = {}
"""The items of keys with an end."""
_first_attempts_ms: Final[dict[tuple[int, int], int]] = {}
"""By shard and epoch, the time of the first attempt of the flush under way."""


def _begin(original: Callable[..., Any]) -> Callable[..., Any]:
    async def flush_until_committed(self: Writer, batch: Batch) -> Any:
        _first_attempts_ms[self._shard, self._epoch] = self._shard_clock.now_ms()
        return await original(self, batch)

    return flush_until_committed


def _commit(original: Callable[..., Any]) -> Callable[..., Any]:
    async def commit(self: FaultyStore, fence: Fence, writes: Writes) -> None:
        for record in writes.idempotency_keys_replaced:  # a takeover that empties a journal replaces none
            first_ms = _first_attempts_ms[self._shard, fence.epoch]
            former = self._tables.idempotency_keys.get((record.namespace, record.key))
            # A namespace that was created again has new keys.
            if former is not None and former.until_ms > first_ms and record.namespace != BRIEF:
                EARLY[f"invariant 3: key {record.key!r} was given to another item before its window had ended"] = None
        await original(self, fence, writes)
        for record in (*writes.idempotency_keys_added, *writes.idempotency_keys_replaced):
            if record.key.endswith(WITH_END.encode()):
                number = _numbers_of_ended.setdefault((record.namespace, record.key), record.item_id)
                if number != record.item_id:
                    EARLY[f"invariant 3: key {record.key!r}, which had an end, was given to two items"] = None

    return commit


_installed = False


def install() -> None:
    """Start to watch in this process. Further calls do nothing."""
    global _installed
    if not _installed:
        _installed = True
        wrap(Writer, "_flush_until_committed", _begin)
        wrap(FaultyStore, "commit", _commit)


def reset() -> None:
    """Forget what an earlier run showed."""
    EARLY.clear()
    _numbers_of_ended.clear()
    _first_attempts_ms.clear()
