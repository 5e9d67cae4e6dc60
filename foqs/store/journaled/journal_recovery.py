"""Reads a shard's journal after a takeover, and replays it.

Always true: the owner row names this host already, so the journal does not change meanwhile. Nothing
is written, and no payload is read. Knows nothing of what an event means.
"""

from __future__ import annotations

import asyncio
from typing import Final

from foqs.core.flush.fence import Position
from foqs.core.journal.dirty_items import DirtyItems
from foqs.core.journal.journal_bytes import JournalDamaged, JournalTooNew, decode_events
from foqs.core.journal.journal_positions import JournalPositions
from foqs.core.journal.journal_replay import JournalReplay
from foqs.store.port import Store, StoreUnusable

_PAGE_BYTES: Final = 4 << 20
"""The maximum size of the events that are read at once."""


async def replay_journal(store: Store) -> tuple[DirtyItems, JournalPositions]:
    """Return the dirty items of the former owner, and where the journal has rows.

    What a row below the floor says is over: it is known by its place and its length alone. Other tasks run between two rows.

    Raises:
        StoreLost: the database cannot be reached.
        StoreUnusable: the journal is damaged, or a newer program has written it.
    """
    replay, positions = JournalReplay(), JournalPositions()
    floor = await store.journal_floor()
    first: Position = (0, 0)
    place = "the journal"
    try:
        while floor is not None and (page := await store.journal_events(first, _PAGE_BYTES)):
            for position, content in page:
                if position < floor:
                    positions.add_row(position, len(content))
                    continue
                place = f"the journal row of epoch {position[0]}, flush {position[1]}"
                events = decode_events(content)
                replay.add(position, events)
                positions.add_row(position, len(content), sum([row.payload_bytes for row in events.added]))
                await asyncio.sleep(0)
            first = (position[0], position[1] + 1)
        place = "the journal"
        return replay.finish(), positions
    except JournalTooNew as too_new:
        raise StoreUnusable(f"{place} cannot be read: {too_new}") from too_new
    except JournalDamaged as damaged:
        raise StoreUnusable(f"{place} is damaged: {damaged}; restore the shard's tables from a backup") from damaged
