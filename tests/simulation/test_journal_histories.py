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
HISTORIES_OF_PARTS: Final = 20_000
CHUNKS: Final = 10


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_rows_and_journal_are_the_memory_and_the_truth(chunk: int) -> None:
    for seed in seeds_of(chunk, HISTORIES):
        difference = play(seed)
        assert difference is None, difference


@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_tables_with_a_journal_hold_what_tables_hold_that_are_written_through(chunk: int) -> None:
    owners = 0
    seeds = seeds_of(chunk, HISTORIES_OF_PARTS)
    for seed in seeds:
        try:
            owners += play_flushes(seed)
        except BaseException as error:
            error.add_note(f"the seed of this history is {seed}")
            raise
    assert owners > len(seeds), "owners end in these histories"


def seeds_of(chunk: int, histories: int) -> range:
    """Return the seeds of one of the `CHUNKS` equal parts of this many histories."""
    return range(chunk * histories // CHUNKS, (chunk + 1) * histories // CHUNKS)
