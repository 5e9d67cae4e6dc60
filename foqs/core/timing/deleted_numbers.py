"""Remembers which rows of one shard were deleted, by their numbers, as far as there is room.

A row is deleted once and its number is never used again, so what is remembered stays
true. What is not remembered may be deleted too. The numbers are divided into blocks with
one bit each, so the memory does not depend on the order of the deletions. Numbers grow,
so the block that was begun first is forgotten first. Reads no clock and no table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

Range: TypeAlias = tuple[int, int]
"""The first and the last number."""

_BLOCK_BITS: Final = 12
BLOCK_NUMBERS: Final = 1 << _BLOCK_BITS
BLOCKS_MAX: Final = 8_192
"""Blocks that are remembered, of half a KiB each: the rows of about 30 million numbers."""


class DeletedNumbers:
    """The numbers of deleted rows.

    Args:
        blocks_max: how many blocks of `BLOCK_NUMBERS` numbers are remembered.
    """

    def __init__(self, blocks_max: int = BLOCKS_MAX) -> None:
        self._blocks_max = blocks_max
        self._blocks: dict[int, int] = {}
        """For each block, a bit for each deleted number."""

    def add(self, ranges: Iterable[Range]) -> None:
        """Remember that the rows of these numbers are deleted, and that is committed."""
        blocks = self._blocks
        for first, last in ranges:
            for block in range(first >> _BLOCK_BITS, (last >> _BLOCK_BITS) + 1):
                known = blocks.get(block)
                if known is None:
                    known = 0
                    if len(blocks) >= self._blocks_max:
                        del blocks[next(iter(blocks))]
                blocks[block] = known | _bits(block, first, last)

    def without_deleted(self, ranges: Sequence[Range]) -> list[Range]:
        """Return the numbers of these sorted, disjoint ranges that are not known to be deleted, as ranges."""
        found: list[Range] = []
        for first, last in ranges:
            for block in range(first >> _BLOCK_BITS, (last >> _BLOCK_BITS) + 1):
                bits = _bits(block, first, last) & ~self._blocks.get(block, 0)
                start = block << _BLOCK_BITS
                while bits:
                    gap = (bits & -bits).bit_length() - 1
                    bits >>= gap
                    # The lowest zero bit ends the range.
                    length = (~bits & (bits + 1)).bit_length() - 1
                    bits >>= length
                    start += gap + length
                    if found and found[-1][1] + 1 == start - length:
                        found[-1] = (found[-1][0], start - 1)
                    else:
                        found.append((start - length, start - 1))
        return found


def _bits(block: int, first: int, last: int) -> int:
    """Return the bits of those numbers from `first` to `last` that are in the block."""
    start = block << _BLOCK_BITS
    low, high = max(first - start, 0), min(last - start, BLOCK_NUMBERS - 1)
    return ((1 << (high - low + 1)) - 1) << low
