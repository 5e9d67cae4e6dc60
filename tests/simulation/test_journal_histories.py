"""Many histories of a shard with a journal.

`tests/unit/core/journal/test_journal_rules.py` has the rules in their plainest form and fewer histories, and
`test_flush_journal.py` beside it the product's own flush plans.
"""

from __future__ import annotations

from typing import Final

import pytest

from tests.support.journal_histories import play
from tests.unit.core.journal.test_flush_journal import play as play_flushes

HISTORIES: Final = 100_000
PARTS: Final = 20


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_rows_and_journal_are_the_memory_and_the_truth(part: int) -> None:
    for seed in range(part * HISTORIES // PARTS, (part + 1) * HISTORIES // PARTS):
        difference = play(seed)
        assert difference is None, difference


@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("part", range(PARTS))
def test_tables_with_a_journal_hold_what_tables_hold_that_are_written_through(part: int) -> None:
    owners = 0
    for seed in range(part * HISTORIES // PARTS, (part + 1) * HISTORIES // PARTS):
        try:
            owners += play_flushes(seed)
        except BaseException as error:
            error.add_note(f"the seed of this history is {seed}")
            raise
    assert owners > HISTORIES // PARTS, "owners end in these histories"
