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

from foqs.core.keys import SLOTS, even_parts

Holdings: TypeAlias = Mapping[int, frozenset[int]]
"""The slots of each shard of a tier that was recorded."""

_SPAN: Final = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4})(?:/([0-9]{1,4}))?)?")


class SlotsTaken(Exception):
    """Slots of one shard are recorded as another's."""

    def __init__(self, shard: int, slots: Iterable[int], other: int) -> None:
        super().__init__(f"slots {', '.join(spans(slots))} of shard {shard} are recorded as those of shard {other}")
        self.shard = shard


def rivals(there: Holdings, shard: int, slots: Set[int]) -> dict[int, frozenset[int]]:
    """By shard, those of one shard's slots that are recorded as another's."""
    if slots <= there.get(shard, frozenset()):
        return {}  # no slot has two shards: nothing is compared with a thousand others
    shared = {other: held & slots for other, held in there.items() if other != shard}
    return {other: both for other, both in shared.items() if both}


def joined(there: Holdings, shard: int, slots: Set[int]) -> Holdings:
    """The same with these slots for a shard, besides those that it has. Raises `SlotsTaken`."""
    for other, both in rivals(there, shard, slots).items():
        raise SlotsTaken(shard, both, other)
    held = there.get(shard)
    return there if held is not None and slots <= held else {**there, shard: (held or frozenset()) | slots}


def holders(there: Holdings) -> list[int | None]:
    """The shard of each slot."""
    found: list[int | None] = [None] * SLOTS
    for shard, slots in there.items():
        for slot in slots:
            found[slot] = shard
    return found


def shared_out(there: Holdings, sharing: Collection[int]) -> Holdings:
    """The same with the slots divided evenly, where all that share them are recorded and nobody has any."""
    if not sharing or not there.keys() >= set(sharing) or any(there.values()):
        return there
    return {**there, **{shard: frozenset(part) for shard, part in even_parts(sorted(sharing)).items()}}


# ------------------------------------------------------------------- as text


def spans(slots: Iterable[int]) -> list[str]:
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


def slots_of_span(text: str) -> range:
    """The slots that one such text names. Raises `ValueError`: it is none."""
    found = _SPAN.fullmatch(text)
    if found is not None:
        first = int(found[1])
        last, step = int(found[2] or first), int(found[3] or 1)
        if step and first <= last < SLOTS:
            return range(first, last + 1, step)
    raise ValueError(f"it must be as 4, 4-7 or 4-10/2, of slots from 0 to {SLOTS - 1}")
