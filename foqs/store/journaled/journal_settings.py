"""How a store journals, and what it may use for that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from foqs.core.journal.journal_budget import JournalBudget

WRITE_BACK_AFTER_MS: Final = 5_000
"""Longer than most items live, and what a takeover replays."""
FLUSH_ITEMS_MAX: Final = 2_000
"""The entries of a flush, of which write-backs have a part."""
HANDOVER_ITEMS_MAX: Final = 20_000
"""The dirty items that an owner leaves to the next one: it replays them faster than they are written back."""
LIVE_BYTES_MAX: Final = 1 << 30
"""The bytes of one shard's journal that are not trimmed."""
RESERVE_BYTES: Final = 1 << 20
"""The events of some thousand flushes: what consumers do until a full disk has room again."""
REFUSED_ITEMS_MAX: Final = 1_000
"""The items of a shard whose rows the database refuses: above it, validation and tables disagree for more than a few."""


@dataclass(slots=True, frozen=True)
class JournalSettings:
    """How the stores of a host journal.

    Attributes:
        write_back_after_ms: how long an item is dirty before its row is written.
        flush_items_max: the entries of a flush, of which write-backs have a part.
        now_ms: returns a time that never goes back.
        is_on: off: a takeover writes all rows back and empties the journal; then each flush writes rows.
        handover_items_max: the dirty items that an owner leaves to the next one.
        live_bytes_max: the bytes of a journal from its floor on. Above it, flushes write rows.
        reserve_bytes: what the journal keeps free for events on a full disk.
        refused_items_max: the items of a shard whose rows are refused. From it on flushes write rows, so that a row is
            refused before its item is acknowledged.
        budget: the memory of all shards of the host. Above it, flushes write rows.
    """

    write_back_after_ms: int
    flush_items_max: int
    now_ms: Callable[[], int]
    is_on: bool = True
    handover_items_max: int = HANDOVER_ITEMS_MAX
    live_bytes_max: int = LIVE_BYTES_MAX
    reserve_bytes: int = RESERVE_BYTES
    refused_items_max: int = REFUSED_ITEMS_MAX
    budget: JournalBudget = field(default_factory=JournalBudget)
