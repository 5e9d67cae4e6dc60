"""Reads the payloads of young items that the memory has left in the journal, for a flush that needs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from foqs.core.flush.fence import Fence
from foqs.core.flush.journal_rows import PayloadPlace
from foqs.core.flush.writes import Writes
from foqs.core.items.idempotency_keys import IdempotencyKey, KeyName
from foqs.core.items.item import Row
from foqs.store.journaled.journal_memory import JournalMemory
from foqs.store.port import Store, StoreUnusable


async def young_payloads(store: Store, memory: JournalMemory, fence: Fence, numbers: Sequence[int]) -> dict[int, bytes]:
    """Return the payloads of those of these items that are young and whose payloads are not in memory.

    Raises:
        FencedOut: another owner has trimmed the journal.
        StoreUnusable: the journal lacks a payload.
    """
    places: dict[int, PayloadPlace] = {}
    for number in numbers:
        item = memory.dirty_items.get(number)
        if item is not None and item.row is not None and item.row.payload is None:
            places[number] = PayloadPlace(item.first, item.payload_offset, item.row.payload_bytes)
    if not places:
        return {}
    found = await store.journal_payloads([*places.values()])
    for number, place in places.items():
        if place not in found:
            await _judge_missing(store, fence, number, place)
    return {number: found[place] for number, place in places.items()}


async def _judge_missing(store: Store, fence: Fence, number: int, place: PayloadPlace) -> None:
    """Raise `FencedOut` if another owner has trimmed the journal; else it is damaged. The fence says which."""

    def give_up(rows: Mapping[int, Row], keys: Mapping[KeyName, IdempotencyKey]) -> Writes:
        epoch, flush = place.position
        raise StoreUnusable(
            f"the journal row of epoch {epoch}, flush {flush} is missing, and item {number} needs its payload; "
            "restore the shard's tables from a backup"
        )

    await store.flush(fence, [number], {}, [], give_up)
