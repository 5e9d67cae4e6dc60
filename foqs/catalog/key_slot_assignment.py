"""The assignment of key slots to the shards of a tier, as the catalog's document records it.

Also holds the text form of slots. A shard that is recorded without slots is
known to hold none; a shard that is not recorded has not reported yet. Always
true: in a result of `with_slots` or `with_even_division`, no slot has two
shards. Pure; the slots that a shard really holds are in its tables.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Set
from typing import Final, TypeAlias

from foqs.core.items.idempotency_keys import divide_key_slots
from foqs_contract.key_slots import KEY_SLOT_COUNT

SlotAssignment: TypeAlias = Mapping[int, frozenset[int]]
"""The key slots of each recorded shard of a tier."""

_SLOT_RANGE: Final = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4})(?:/([0-9]{1,4}))?)?")


class SlotConflict(Exception):
    """Slots of one shard are recorded as another's."""

    def __init__(self, shard: int, slots: Iterable[int], other: int) -> None:
        super().__init__(
            f"slots {', '.join(format_slots(slots))} of shard {shard} are recorded as those of shard {other}"
        )
        self.shard = shard


def conflicting_slots(assignment: SlotAssignment, shard: int, slots: Set[int]) -> dict[int, frozenset[int]]:
    """Return which of a shard's slots are recorded as another shard's, by that other shard."""
    if slots <= assignment.get(shard, frozenset()):
        return {}  # saves the comparison with a thousand shards: no slot has two
    shared = {other: held & slots for other, held in assignment.items() if other != shard}
    return {other: conflicts for other, conflicts in shared.items() if conflicts}


def with_slots(assignment: SlotAssignment, shard: int, slots: Set[int]) -> SlotAssignment:
    """Return the assignment with these slots added to a shard. Raises `SlotConflict`."""
    for other, conflicts in conflicting_slots(assignment, shard, slots).items():
        raise SlotConflict(shard, conflicts, other)
    held = assignment.get(shard)
    return assignment if held is not None and slots <= held else {**assignment, shard: (held or frozenset()) | slots}


def shard_by_slot(assignment: SlotAssignment) -> list[int | None]:
    """Return the shard of each slot, by slot; None for a slot that is not assigned."""
    shards: list[int | None] = [None] * KEY_SLOT_COUNT
    for shard, slots in assignment.items():
        for slot in slots:
            shards[slot] = shard
    return shards


def with_even_division(assignment: SlotAssignment, tier_shards: Collection[int]) -> SlotAssignment:
    """Return the slots divided evenly, if all shards of the tier are recorded and none has slots; else the same assignment."""
    if not tier_shards or not assignment.keys() >= set(tier_shards) or any(assignment.values()):
        return assignment
    return {**assignment, **{shard: frozenset(part) for shard, part in divide_key_slots(sorted(tier_shards)).items()}}


# ------------------------------------------------------------------- as text


def format_slots(slots: Iterable[int]) -> list[str]:
    """Return slots as texts such as `4`, `4-7` or `4-10/2` (4, 6, 8, 10); the same texts for equal sets."""
    rest = sorted(slots)
    texts: list[str] = []
    start = 0
    while start < len(rest):
        step = rest[start + 1] - rest[start] if start + 1 < len(rest) else 0
        stop = start + 1
        while stop < len(rest) and rest[stop] - rest[stop - 1] == step:
            stop += 1
        if stop - start < 3 and step != 1:
            stop = start + 1
        first, last = rest[start], rest[stop - 1]
        texts.append(str(first) if first == last else f"{first}-{last}" if step == 1 else f"{first}-{last}/{step}")
        start = stop
    return texts


def parse_slot_range(text: str) -> range:
    """Parse one text of `format_slots`. Raises `ValueError`."""
    found = _SLOT_RANGE.fullmatch(text)
    if found is not None:
        first = int(found[1])
        last, step = int(found[2] or first), int(found[3] or 1)
        if step and first <= last < KEY_SLOT_COUNT:
            return range(first, last + 1, step)
    raise ValueError(f"write it as 4, 4-7 or 4-10/2, with slots from 0 to {KEY_SLOT_COUNT - 1}")
