"""What the owner of an outbox knows: rows that were read go in, rounds and calls come out.

Holds `RelayMemory`. A *round* is one transaction of the relay. Always true: a row is sent
only under a stamp of a committed round; a row is known by its id from the read that found
it until the round that deletes it, or until it is forgotten; what was forgotten, a sweep
finds; nothing is stamped between a page, or a sweep's page, and the read of the gaps after
it, which may fail. A memory whose round was not committed is discarded. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from foqs_client.outbox.gaps import Gaps, IdRange, missing_between
from foqs_client.outbox.relay_limits import DEFAULT_LIMITS, RelayLimits
from foqs_client.outbox.relay_state import RelayState, Stamp
from foqs_client.outbox.row_groups import OutboxRow, RowGroups, first_of_groups, first_within, places_of
from foqs_client.outbox.row_outcome import ROW_OUTCOMES, Reply, RowOutcome, SentState


@dataclass(slots=True, frozen=True)
class SendCall:
    """One enqueue that the relay sends.

    Attributes:
        is_atomic: the rows are a run of one group, which is written as a whole or not.
    """

    rows: tuple[OutboxRow, ...]
    keys_until_ms: int
    is_atomic: bool = False


@dataclass(slots=True, frozen=True)
class ParkedRow:
    """A row that an operator decides. `verdict`: `resend`, or None as long as there is none; then the row has no item."""

    row: OutboxRow
    verdict: str | None = None


@dataclass(slots=True)
class Round:
    """The changes that one transaction of the relay writes, after its fence.

    Attributes:
        deleted: ids to delete, from the outbox and from the parked rows.
        parked: rows to move from the outbox to the parked rows; of those that are there, the verdict ends.
        state: for the owner row.
        calls: to send when the round is committed.
    """

    deleted: list[int] = field(default_factory=list)
    parked: list[OutboxRow] = field(default_factory=list)
    state: RelayState = field(default_factory=RelayState)
    calls: list[SendCall] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether it changes no row and sends nothing."""
        return not (self.deleted or self.parked or self.calls)


class RelayMemory:
    """The memory of one ownership.

    Args:
        state: of the owner row when the ownership began.
        stamped: the rows of its stamps that are there: all of them are in doubt.
        parked: the parked rows.
    """

    def __init__(
        self,
        state: RelayState,
        stamped: Iterable[OutboxRow],
        parked: Iterable[ParkedRow],
        now_s: float,
        limits: RelayLimits = DEFAULT_LIMITS,
    ) -> None:
        self._limits = limits
        self._read_to = state.read_to
        self._gaps = Gaps(limits.gap_keep_s, limits.gaps_max)
        self._gaps.add(state.gaps, now_s)
        self._are_gaps_read = True
        """Whether they were read since the last page: a row that was found there may have one before it in a gap."""
        self._groups = RowGroups(limits.held_groups_max)
        self._loose: dict[int, OutboxRow] = {}
        """Waiting rows without a group."""
        self._loose_places = 0
        self._sent: dict[int, tuple[OutboxRow, SentState]] = {}
        """Rows that are stamped, and have no outcome."""
        self._sent_places = 0
        self._keys_until_ms: dict[int, int] = {}
        """The end of the key of each of these."""
        self._asked: set[int] = set()
        """Those of them that were sent again and have no reply."""
        self._answered: set[int] = set()
        """Rows that the next round deletes."""
        self._to_park: list[OutboxRow] = []
        self._parked: dict[int, str | None] = {}
        """The group of each parked row. It is one until it is dropped or in the queue, whatever is resent."""
        self._resent: dict[int, OutboxRow] = {}
        """Parked rows that wait, because an operator said that they are to be sent."""
        self._leaving: frozenset[int] = frozenset()
        """Rows that the round under way deletes."""
        self._are_rows_forgotten = True
        self._swept_to: int | None = None
        self._is_sweep_full = False
        for each in parked:
            self._add_parked(each.row)
        until_ms = {id: stamp.keys_until_ms for stamp in state.stamps for id in stamp.ids}
        for row in stamped:
            self._add_sent([row], SentState.IN_DOUBT, until_ms[row.id])

    # --------------------------------------------------------------------- reads

    @property
    def read_to(self) -> int:
        """A page begins above this id."""
        return self._read_to

    @property
    def gap_ranges(self) -> list[IdRange]:
        """The ids to read after a page or a sweep's page."""
        return self._gaps.ranges

    @property
    def swept_to(self) -> int | None:
        """A sweep's page begins above this id; None: no sweep is under way."""
        return self._swept_to

    @property
    def wants_rows(self) -> bool:
        """Whether there is room for the rows of a page and of a sweep's page."""
        return self._loose_places + self._groups.free_places <= self._limits.waiting_rows_max // 2

    @property
    def wants_sweep(self) -> bool:
        """Whether a sweep has something to find, and none is under way."""
        return self._swept_to is None and (self._are_rows_forgotten or self._groups.wants_sweep)

    @property
    def has_cut_groups(self) -> bool:
        """Whether a sweep finds rows that were left because there was no room, and not because they were refused."""
        return self._groups.has_cuts

    @property
    def has_drained(self) -> bool:
        """Whether few rows of groups wait, so that a sweep has room for what was cut."""
        return self._groups.waiting_places <= self._limits.waiting_rows_max // 4

    @property
    def is_sweep_full(self) -> bool:
        """Whether the last page of the sweep under way had rows without room, and none that was added."""
        return self._is_sweep_full

    def begin_sweep(self) -> None:
        """Begin to read the table from its start."""
        self._swept_to = 0
        self._is_sweep_full = False
        self._are_rows_forgotten = False
        self._groups.begin_sweep()

    def add_page(self, rows: Sequence[OutboxRow], now_s: float) -> None:
        """Add the first rows above `read_to`, by id."""
        ids = [row.id for row in rows]
        self._gaps.add(missing_between(self._read_to, ids), now_s)
        for row in rows:
            self._add_found(row, self._swept_to)
        if ids:
            self._read_to = ids[-1]
        self._are_gaps_read = not self.gap_ranges

    def add_gap_rows(self, rows: Sequence[OutboxRow], began_s: float, *, is_complete: bool = True) -> None:
        """Add the rows that were found in `gap_ranges`, by a read that began at this time.

        Args:
            is_complete: these are all rows in the gaps, and not only the first ones.
        """
        self._gaps.remove_found([row.id for row in rows])
        if is_complete:
            self._gaps.remove_old(began_s)
        else:
            self._groups.hold_all()  # a group's rows may be missing below one that was found; a sweep goes by id
        for row in rows:
            self._add_found(row, self._swept_to)
        self._are_gaps_read = True

    def add_swept(self, rows: Sequence[OutboxRow]) -> None:
        """Add the first rows above `swept_to` and up to `read_to`, by id. None: the sweep ends."""
        added = [row for row in rows if self._add_found(row, None)]
        self._is_sweep_full = not added and any(
            row.row_group is not None and self._groups.is_cut(row.row_group, row.id) for row in rows
        )
        if rows:
            self._swept_to = rows[-1].id
            self._gaps.remove_found([row.id for row in rows])
        else:
            self._swept_to = None
            self._groups.end_sweep()
        self._are_gaps_read = not self.gap_ranges

    def end_sweep_early(self) -> None:
        """Leave the rows above `swept_to` to the next sweep, which begins at the start of the table again."""
        assert self._swept_to is not None
        self._groups.end_sweep(self._swept_to + 1)
        self._swept_to = None
        self._are_rows_forgotten = True  # without a group

    def _add_found(self, row: OutboxRow, swept_to: int | None) -> bool:
        """Let a row wait, unless it is known or left to a sweep. A sweep under way finds what is above `swept_to`.

        Return whether it waits now.
        """
        if self._is_known(row.id):
            return False
        group, rows_max = row.row_group, self._limits.waiting_rows_max
        if group is None:
            if self._loose_places < rows_max:
                self._loose[row.id] = row
                self._loose_places += row.places
                return True
            self._are_rows_forgotten = True
        elif not self._groups.is_left_to_sweep(group, row.id, swept_to):
            if self._groups.waiting_places >= rows_max:
                self._groups.make_room(rows_max // 2)
            if self._groups.waiting_places >= rows_max or self._groups.is_left_to_sweep(group, row.id, swept_to):
                self._groups.cut(group, row.id)
            else:
                self._groups.add_waiting(group, row)
                return True
        return False

    def _is_known(self, id: int) -> bool:
        known = (self._sent, self._answered, self._leaving, self._parked, self._loose)
        return any(id in ids for ids in known) or self._groups.is_waiting(id)

    # -------------------------------------------------------------------- rounds

    def plan_round(self, keys_until_ms: int | None) -> Round:
        """Return the next round. `on_round_committed` must follow before anything of it is sent, or the next one is planned.

        Args:
            keys_until_ms: the end of the keys that are stamped. None: it is not known, and nothing is stamped; nor while gaps
                are to be read.
        """
        deleted, self._answered = sorted(self._answered), set()
        parked, self._to_park = self._to_park, []
        self._leaving = frozenset(deleted)
        calls: list[SendCall] = []
        if keys_until_ms is not None and self._are_gaps_read:
            calls = self._stamp(keys_until_ms)
        return Round(deleted, parked, RelayState(self._read_to, tuple(self._gaps.ranges), self._stamps()), calls)

    def on_round_committed(self) -> None:
        """The rows that the round deletes are gone. Its calls may be sent."""
        self._leaving = frozenset()

    @property
    def has_answered(self) -> bool:
        """Whether rows have outcomes that no round has written."""
        return bool(self._answered or self._to_park)

    def _stamp(self, keys_until_ms: int) -> list[SendCall]:
        room = min(self._limits.stamp_rows_max, self._limits.in_flight_rows_max - self._sent_places)
        resent = self._take_resent(room)
        self._add_sent(resent, SentState.IN_FLIGHT, keys_until_ms)  # so no run of their groups goes beside them
        room = 0 if len(self._parked) >= self._limits.parked_rows_max else room - places_of(resent)
        room_of_runs = room - min(self._loose_places, room // 2)  # many groups must not starve the other rows
        runs = self._groups.take_runs(room_of_runs, self._limits.run_rows_max)
        loose = first_within((self._loose[id] for id in sorted(self._loose)), room - sum(map(places_of, runs)))
        for row in loose:
            del self._loose[row.id]
        self._loose_places -= places_of(loose)
        alone = [*resent, *loose, *(run[0] for run in runs if len(run) == 1)]
        calls = [SendCall(tuple(run), keys_until_ms, is_atomic=True) for run in runs if len(run) > 1]
        if alone:
            calls.append(SendCall(tuple(alone), keys_until_ms))
        self._add_sent([*loose, *(row for run in runs for row in run)], SentState.IN_FLIGHT, keys_until_ms)
        return calls

    def _take_resent(self, places: int) -> list[OutboxRow]:
        """Remove and return the next resent rows: the first of each group of which none is sent."""
        free = [
            row for row in self._resent.values() if row.row_group is None or not self._groups.is_sent(row.row_group)
        ]
        taken = first_within(first_of_groups(free), places)
        for row in taken:
            del self._resent[row.id]
        return taken

    def _stamps(self) -> tuple[Stamp, ...]:
        ids_by_end: dict[int, list[int]] = {}
        for id, until_ms in self._keys_until_ms.items():
            ids_by_end.setdefault(until_ms, []).append(id)
        return tuple(Stamp(until_ms, tuple(sorted(ids))) for until_ms, ids in sorted(ids_by_end.items()))

    def doubtful_calls(self) -> list[SendCall]:
        """Return the rows in doubt that may be sent again: the first of each group, one by one. No stamp is needed."""
        found = [
            row
            for row in first_of_groups([row for row, _ in self._sent.values()])
            if self._sent[row.id][1] is SentState.IN_DOUBT and row.id not in self._asked
        ]
        self._asked.update([row.id for row in found])
        by_end: dict[int, list[OutboxRow]] = {}
        for row in found:
            by_end.setdefault(self._keys_until_ms[row.id], []).append(row)
        return [SendCall(tuple(rows), until_ms) for until_ms, rows in by_end.items()]

    # ------------------------------------------------------------------- replies

    def on_replies(self, replies: Mapping[int, Reply]) -> None:
        """Decide on the rows of one call by their replies, by id."""
        self._asked.difference_update(replies)
        for id in sorted(replies):
            sent = self._sent.get(id)
            if sent is None:
                continue  # it was parked behind another one
            row, state = sent
            match ROW_OUTCOMES[state, replies[id]]:
                case RowOutcome.DONE:
                    self._remove_sent(row)
                    self._answered.add(id)
                    self._remove_parked(id)
                case RowOutcome.FORGOTTEN:
                    self._remove_sent(row)
                    self._forget(row)
                case RowOutcome.DOUBTED:
                    self._doubt(row, state)
                case RowOutcome.PARKED:
                    self._park(row, may_be_queued=row.may_be_queued)
                case RowOutcome.PARKED_IN_DOUBT:
                    self._park(row, may_be_queued=True)

    def _forget(self, row: OutboxRow) -> None:
        if row.id in self._parked:
            return  # its verdict is read again
        if row.row_group is None:
            self._are_rows_forgotten = True
        else:
            self._groups.hold(row.row_group)

    def _park(self, row: OutboxRow, *, may_be_queued: bool) -> None:
        """Park a row that was sent, and the rows in doubt of its group behind it."""
        behind = [
            other
            for other, state in self._sent.values()
            if row.row_group is not None
            and other.row_group == row.row_group
            and other.id > row.id
            and state is SentState.IN_DOUBT
        ]
        for each in [row, *behind]:
            parked = replace(each, may_be_queued=may_be_queued if each is row else True)
            self._to_park.append(parked)
            self._add_parked(each)
        for each in [row, *behind]:
            self._remove_sent(each)

    # --------------------------------------------------------------- parked rows

    @property
    def wants_resent(self) -> bool:
        """Whether there is room for parked rows with a verdict."""
        return places_of(self._resent.values()) < self._limits.stamp_rows_max

    @property
    def known_resent(self) -> set[int]:
        """Parked rows whose items need not be read: they wait here, or are sent."""
        return self._resent.keys() | self._sent.keys()

    def on_parked_read(self, parked: Sequence[ParkedRow]) -> None:
        """Compare with the table of parked rows, which was read after the last round. Rows that are missing were dropped."""
        present = {each.row.id for each in parked}
        kept = {row.id for row in self._to_park}
        for id in [id for id in self._parked if id not in present and id not in kept]:
            self._remove_parked(id)
        for each in parked:
            row = each.row
            if not self._is_known(row.id):
                self._add_parked(row)  # by an operator
            if each.verdict == "resend" and row.id in self._parked and row.id not in self._sent and row.id not in kept:
                self._resent[row.id] = row

    def _add_parked(self, row: OutboxRow) -> None:
        if row.id in self._parked:
            return
        self._parked[row.id] = row.row_group
        if row.row_group is not None:
            self._groups.park(row.row_group, row.id)

    def _remove_parked(self, id: int) -> None:
        self._resent.pop(id, None)
        group = self._parked.pop(id, None)
        if group is not None:
            self._groups.unpark(group, id)

    # ------------------------------------------------------------------ sent rows

    def _add_sent(self, rows: Iterable[OutboxRow], state: SentState, keys_until_ms: int) -> None:
        for row in rows:
            self._sent[row.id] = row, state
            self._keys_until_ms[row.id] = keys_until_ms
            self._sent_places += row.places
            if row.row_group is not None:
                self._groups.add_sent(row.row_group)
                if state is SentState.IN_DOUBT:
                    self._groups.add_doubt(row.row_group)

    def _doubt(self, row: OutboxRow, state: SentState) -> None:
        self._sent[row.id] = row, SentState.IN_DOUBT
        if row.row_group is not None and state is SentState.IN_FLIGHT:
            self._groups.add_doubt(row.row_group)

    def _remove_sent(self, row: OutboxRow) -> None:
        _, state = self._sent.pop(row.id)
        del self._keys_until_ms[row.id]
        self._sent_places -= row.places
        if row.row_group is not None:
            self._groups.remove_sent(row.row_group)
            if state is SentState.IN_DOUBT:
                self._groups.remove_doubt(row.row_group)
