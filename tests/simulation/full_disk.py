"""Watches that a full disk refuses no flush that brings no item: acks and leases go on, of young items, too.

Only the last half of the journal's reserve is kept from flushes that begin leases.

Wraps the product's methods once in a process; `DELAYED` is cleared before each run. Does not change what
it watches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from foqs.core.flush.fence import Fence
from foqs.core.flush.writes import Writes
from foqs.store.journaled.extra_writes import is_end
from foqs.store.journaled.journaled_store import JournaledStore
from foqs.store.port import WriteRefused
from tests.simulation.planting import wrap

DELAYED: Final[dict[str, None]] = {}
"""The flushes that were refused."""


def _flush(original: Callable[..., Any]) -> Callable[..., Any]:
    async def flush(self: JournaledStore, fence: Fence, *arguments: Any) -> None:
        *others, decide = arguments
        decided: list[Writes] = []

        def remember(rows: Mapping[Any, Any], keys: Mapping[Any, Any]) -> Writes:
            decided.append(decide(rows, keys))
            return decided[-1]

        try:
            await original(self, fence, *others, remember)
        except WriteRefused as refused:
            changes = decided[-1].changes if decided else None
            begins = changes is None or changes.inserted or changes.moved
            if refused.is_full and changes is not None and not begins and (self.extra.has_half or is_end(changes)):
                DELAYED[f"a full disk refused flush {fence.flush} of epoch {fence.epoch}, which brings no item"] = None
            raise

    return flush


_installed = False


def install() -> None:
    """Start to watch in this process. Further calls do nothing."""
    global _installed
    if not _installed:
        _installed = True
        wrap(JournaledStore, "flush", _flush)


def reset() -> None:
    """Forget what an earlier run showed."""
    DELAYED.clear()
