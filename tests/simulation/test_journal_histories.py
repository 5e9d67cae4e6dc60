"""Many histories of a shard with a journal; `tests/unit/core/journal/test_journal_rules.py` has the rules and fewer histories."""

from __future__ import annotations

from typing import Final

import pytest

from tests.support.journal_histories import play

HISTORIES: Final = 100_000
PARTS: Final = 20


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_rows_and_journal_are_the_memory_and_the_truth(part: int) -> None:
    for seed in range(part * HISTORIES // PARTS, (part + 1) * HISTORIES // PARTS):
        difference = play(seed)
        assert difference is None, difference
