"""Each committed row of an outbox becomes one item, in order by row group, whatever dies.

The rules of docs/design/outbox.md, over random histories. Each rule has a planted mistake that breaks
it, and each mistake must be found.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Any, Final

import pytest

from foqs_client.outbox.relay_memory import ParkedRow, RelayMemory, Round, SendCall
from foqs_client.outbox.row_groups import OutboxRow
from foqs_client.outbox.row_outcome import ROW_OUTCOMES, Reply, RowOutcome, SentState
from tests.support.example_counts import examples
from tests.support.outbox_histories import play
from tests.support.plain_outbox import PlainRelay, Tables

HISTORIES: Final = examples(50)
PLANTED_HISTORIES_MAX: Final = 200
"""A planted mistake must be found within this many, from the first seed on that its test names."""


def test_each_committed_row_is_one_item_and_groups_are_in_order() -> None:
    for seed in range(HISTORIES):
        assert play(seed) is None


def test_a_database_that_loses_its_last_commits_doubles_no_row_within_the_key_window() -> None:
    for seed in range(HISTORIES):
        assert play(seed, with_failovers=True) is None


class EndsSweepsEarly(PlainRelay):
    """Sweeps end anywhere before the end of the table, as they may if memory is full."""

    pages = 0

    def read_gaps(self, memory: RelayMemory) -> None:
        self.pages += 1
        if memory.swept_to is not None and self.pages % 3 == 0:
            memory.end_sweep_early()
        super().read_gaps(memory)


def test_sweeps_that_end_early_keep_the_rules() -> None:
    for seed in range(HISTORIES):
        assert play(seed, EndsSweepsEarly) is None


class LosesItsDatabaseBeforeGaps(PlainRelay):
    """Each third read of the gaps fails."""

    reads = 0

    def read_gaps(self, memory: RelayMemory) -> None:
        self.reads += 1
        if self.reads % 3:
            super().read_gaps(memory)


def test_gaps_that_cannot_be_read_keep_the_rules() -> None:
    for seed in range(HISTORIES):
        assert play(seed, LosesItsDatabaseBeforeGaps) is None


# ------------------------------------------------------------- planted mistakes


class JudgesByDatabaseClock(PlainRelay):
    """The relay sends again while the database's clock shows less than the key window, and the queue does not judge."""

    def run(self) -> Iterator[None]:
        self.queue.checks_ends = False
        yield from super().run()

    def send(self, call: SendCall) -> Generator[None, None, dict[int, Reply]]:
        if self.queue.now_ms >= call.keys_until_ms:
            return dict.fromkeys([row.id for row in call.rows], Reply.ENDED)
        return (yield from super().send(call))


class SendsBeforeItsStamp(PlainRelay):
    """Rows are sent before the round that stamps them is committed."""

    early: dict[int, Reply] | None = None

    def before_commit(self, round: Round) -> Iterator[None]:
        self.early = {}
        for call in round.calls:
            self.early.update((yield from super().send(call)))
        yield

    def send(self, call: SendCall) -> Generator[None, None, dict[int, Reply]]:
        if self.early and call.rows[0].id in self.early:
            return {row.id: self.early.pop(row.id) for row in call.rows}
        return (yield from super().send(call))


class IsNotFenced(PlainRelay):
    """A relay that lost the outbox goes on to write rounds."""

    def commit(self, epoch: int, number: int, round: Round) -> bool:
        tables = self.database.tables
        return self.database.commit_round(tables.epoch, tables.nonce, tables.round + 1, round)


class TakesOverWithAnOlderState(PlainRelay):
    """The former owner writes rounds after its successor has read the state, and before that takes over."""

    def before_take_over(self) -> Iterator[None]:
        yield from [None] * 20

    def may_take_over(self, seen: Tables, tables: Tables) -> bool:
        return tables.epoch == seen.epoch


class SkipsGaps(PlainRelay):
    """Only rows above the last id are read. Others are left to sweeps."""

    def rows_in(self, ranges: Sequence[tuple[int, int]]) -> list[OutboxRow]:
        return []


class ReadsGapsFirst(PlainRelay):
    """Gaps are read before the page, and time passes between the two."""

    def read(self, memory: RelayMemory) -> Iterator[None]:
        self.read_gaps(memory)
        yield from [None] * 10
        rows_in, self.rows_in = self.rows_in, lambda ranges: []  # type: ignore[method-assign]
        yield from super().read(memory)
        self.rows_in = rows_in  # type: ignore[method-assign]


class SendsBesideUnreadGapRows(PlainRelay):
    """More rows appear in gaps than one read takes, and rows of their groups are sent before the others are read."""

    def read_gaps(self, memory: RelayMemory) -> None:
        memory.add_gap_rows(self.rows_in(memory.gap_ranges)[:1], self.clock[0])


class EndsGapsUnread(RelayMemory):
    """A gap ends by its age, whether it was read since or not."""

    def add_page(self, rows: Sequence[OutboxRow], now_s: float) -> None:
        self._gaps.remove_old(now_s)
        super().add_page(rows, now_s)


class SendsBesideUnreadGaps(RelayMemory):
    """Rows of a page are sent although the read of the gaps has failed."""

    def plan_round(self, keys_until_ms: int | None) -> Round:
        self._are_gaps_read = True
        return super().plan_round(keys_until_ms)


class SendsLateRowsBeforeTheSweep(RelayMemory):
    """A row of a gap is sent although its group has forgotten rows that the sweep has not come to."""

    def add_gap_rows(self, rows: Sequence[OutboxRow], began_s: float, *, is_complete: bool = True) -> None:
        swept_to, self._swept_to = self._swept_to, None
        super().add_gap_rows(rows, began_s, is_complete=is_complete)
        self._swept_to = swept_to


class HoldsNoGroupAfterTakeover(RelayMemory):
    """The next owner sends new rows of a group before it has read what the former one had left."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._groups._are_all_held = False


class ReleasesResentRows(RelayMemory):
    """Rows behind a parked one are sent when an operator resends it, and not when it is in the queue."""

    def on_parked_read(self, parked: Sequence[ParkedRow]) -> None:
        super().on_parked_read(parked)
        for row in self._resent.values():
            if row.row_group is not None and row.id in self._groups._parked.get(row.row_group, ()):
                self._groups.unpark(row.row_group, row.id)

    def _remove_parked(self, id: int) -> None:
        group = self._parked.get(id)
        if group is not None and id not in self._groups._parked.get(group, ()):
            self._parked[id] = None
        super()._remove_parked(id)


class SendsRowsBeyondACut(RelayMemory):
    """A row that is found beyond the cut of its group is sent, although rows before it were forgotten."""

    def _add_found(self, row: OutboxRow, swept_to: int | None) -> bool:
        cut, self._groups._cut = self._groups._cut, {}
        is_added = super()._add_found(row, swept_to)
        self._groups._cut = cut | self._groups._cut
        return is_added


class SendsRowsBeyondASweep(RelayMemory):
    """A sweep ends early, and new rows of its groups are sent before the rows that it has not come to."""

    def end_sweep_early(self) -> None:
        super().end_sweep_early()
        self._groups._cut_all = None


class NeverSweeps(RelayMemory):
    """What was forgotten is found by nobody."""

    @property
    def wants_sweep(self) -> bool:
        return False


class ForgetsDoubts(RelayMemory):
    """A taker-over does not know which rows may have been sent."""

    def __init__(self, state: Any, stamped: Any, *args: Any, **options: Any) -> None:
        super().__init__(state, (), *args, **options)


def _with_memory(memory: type[RelayMemory]) -> type[PlainRelay]:
    return type(memory.__name__, (PlainRelay,), {"memory_type": memory})


def _find(relay: type[PlainRelay], first_seed: int = 0, *, with_failovers: bool = False) -> str | None:
    for seed in range(first_seed, first_seed + PLANTED_HISTORIES_MAX):
        found = play(seed, relay, with_failovers=with_failovers)
        if found is not None:
            return found
    return None


# Few histories meet some of the mistakes. Their search begins at the first seed that shows them.
@pytest.mark.parametrize(
    ("relay", "first_seed"),
    [
        (JudgesByDatabaseClock, 0),
        (SendsBeforeItsStamp, 0),
        (IsNotFenced, 0),
        (TakesOverWithAnOlderState, 16),
        (SkipsGaps, 0),
        (ReadsGapsFirst, 140),
        (SendsBesideUnreadGapRows, 107),
        (_with_memory(EndsGapsUnread), 140),
        (_with_memory(SendsLateRowsBeforeTheSweep), 0),
        (_with_memory(HoldsNoGroupAfterTakeover), 0),
        (_with_memory(ReleasesResentRows), 18),
        (_with_memory(SendsRowsBeyondACut), 58),
        (_with_memory(NeverSweeps), 0),
        (_with_memory(ForgetsDoubts), 0),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else str(value),
)
def test_a_planted_mistake_is_found(relay: type[PlainRelay], first_seed: int) -> None:
    assert _find(relay, first_seed) is not None


def test_rows_beyond_a_sweep_that_ended_early_are_found_to_overtake() -> None:
    early = type("Early", (EndsSweepsEarly,), {"memory_type": SendsRowsBeyondASweep})

    assert _find(early) is not None


def test_rows_that_are_sent_before_gaps_are_read_are_found_to_overtake() -> None:
    hasty = type("Hasty", (LosesItsDatabaseBeforeGaps,), {"memory_type": SendsBesideUnreadGaps})

    assert "which began after its commit" in (_find(hasty) or "")


def test_a_refusal_that_ends_a_doubt_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ROW_OUTCOMES, (SentState.IN_DOUBT, Reply.LATER), RowOutcome.FORGOTTEN)

    assert _find(PlainRelay) is not None


def test_a_run_that_is_parked_because_some_keys_are_remembered_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ROW_OUTCOMES, (SentState.IN_FLIGHT, Reply.PARTLY_KNOWN), RowOutcome.PARKED)

    assert "no row of its group was refused" in (_find(PlainRelay, with_failovers=True) or "")


class NamesKeysById(PlainRelay):
    """The key of a row is made of its id, which is given out again after a failover."""

    def run(self) -> Iterator[None]:
        self.queue.keys_are_ids = True
        yield from super().run()


def test_keys_made_of_ids_are_found_to_lose_rows_after_a_failover() -> None:
    assert "is not in the queue" in (_find(NamesKeysById, with_failovers=True) or "")
