"""Which shard shall hold which slots of idempotency keys, as the catalog's document says it.

Holds the slots of one tier, by shard, and their form in text. A shard that is
named with no slots holds none, and is known to; one that is not named has not
said yet. Always true of what `joined` and `shared_out` return: no slot has two
shards. Pure; the tables of the shards say what they do hold.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Set
from typing import Final, TypeAlias

from foqs.core.items.idempotency_keys import KEY_SLOT_COUNT, divide_key_slots

SlotAssignment: TypeAlias = Mapping[int, frozenset[int]]
"""The slots of each shard of a tier that was recorded."""

_SLOT_RANGE: Final = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4})(?:/([0-9]{1,4}))?)?")


class SlotConflict(Exception):
    """Slots of one shard are recorded as another's."""

    def __init__(self, shard: int, slots: Iterable[int], other: int) -> None:
        super().__init__(
            f"slots {', '.join(format_slots(slots))} of shard {shard} are recorded as those of shard {other}"
        )
        self.shard = shard


def conflicting_slots(assignment: SlotAssignment, shard: int, slots: Set[int]) -> dict[int, frozenset[int]]:
    """By shard, those of one shard's slots that are recorded as another's."""
    if slots <= assignment.get(shard, frozenset()):
        return {}  # no slot has two shards: nothing is compared with a thousand others
    shared = {other: held & slots for other, held in assignment.items() if other != shard}
    return {other: both for other, both in shared.items() if both}


def with_slots(assignment: SlotAssignment, shard: int, slots: Set[int]) -> SlotAssignment:
    """The same with these slots for a shard, besides those that it has. Raises `SlotConflict`."""
    for other, both in conflicting_slots(assignment, shard, slots).items():
        raise SlotConflict(shard, both, other)
    held = assignment.get(shard)
    return assignment if held is not None and slots <= held else {**assignment, shard: (held or frozenset()) | slots}


def shard_by_slot(assignment: SlotAssignment) -> list[int | None]:
    """The shard of each slot."""
    found: list[int | None] = [None] * KEY_SLOT_COUNT
    for shard, slots in assignment.items():
        for slot in slots:
            found[slot] = shard
    return found


def with_even_division(assignment: SlotAssignment, tier_shards: Collection[int]) -> SlotAssignment:
    """The same with the slots divided evenly, where all that share them are recorded and nobody has any."""
    if not tier_shards or not assignment.keys() >= set(tier_shards) or any(assignment.values()):
        return assignment
    return {**assignment, **{shard: frozenset(part) for shard, part in divide_key_slots(sorted(tier_shards)).items()}}


# ------------------------------------------------------------------- as text


def format_slots(slots: Iterable[int]) -> list[str]:
    """`4`, `4-7`, or `4-10/2` (4, 6, 8, 10): the same texts for equal sets, in order."""
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
    """The slots that one such text names. Raises `ValueError`: it is none."""
    found = _SLOT_RANGE.fullmatch(text)
    if found is not None:
        first = int(found[1])
        last, step = int(found[2] or first), int(found[3] or 1)
        if step and first <= last < KEY_SLOT_COUNT:
            return range(first, last + 1, step)
    raise ValueError(f"it must be as 4, 4-7 or 4-10/2, of slots from 0 to {KEY_SLOT_COUNT - 1}")
