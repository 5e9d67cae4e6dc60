"""Random histories of an outbox with its relays, and the judgement of what the queue got.

`play` runs one history of a seed and returns the first wrong thing, or None.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Final

from foqs_client.outbox.relay_memory import SendCall
from foqs_client.outbox.row_groups import OutboxRow
from tests.support.plain_outbox import LIMITS, Parked, PlainDatabase, PlainQueue, PlainRelay, Written

STEPS: Final = 500
HEALED_STEPS_MAX: Final = 6_000
_GROUPS: Final = (None, "a", "a", "b", "c", "d")


class History:
    """One history.

    Args:
        with_failovers: the database may lose its last commits. Then the time stays below the key window.
    """

    def __init__(self, seed: int, relay_type: type[PlainRelay], *, with_failovers: bool) -> None:
        self.rng = Random(seed)
        self.relay_type = relay_type
        self.with_failovers = with_failovers
        self.database = PlainDatabase()
        self.queue = PlainQueue()
        self.late: list[SendCall] = []
        self.clock = [0.0]
        self.written: dict[int, Written] = {}
        self.open: dict[int, Written] = {}
        """By id, the rows of transactions that have not ended."""
        self.by_id: dict[int, Written] = {}
        self.parked_once: set[int] = set()
        """Rows that were parked: operators decide about them."""
        self.may_double: set[int] = set()
        self.dropped: set[int] = set()
        self.problem: str | None = None
        """The last wrong thing that was seen on the way."""
        self.runs: list[tuple[PlainRelay, Iterator[None]]] = []
        self.nonces = 0
        self.at = 0

    # ------------------------------------------------------------------- actions

    def step(self) -> None:
        self.at += 1
        rng = self.rng
        action = rng.random()
        if action < 0.60:
            self.run_a_relay()
        elif action < 0.72:
            self.begin_transaction()
        elif action < 0.86:
            self.end_transaction()
        elif action < 0.867:
            self.start_relay()
        elif action < 0.874:
            self.kill_relay()
        elif action < 0.90:
            self.advance(rng.choice((0.1, 1, 20, 20, 70, 120, 700, 4_000)))
        elif action < 0.94:
            self.deliver_late()
        elif action < 0.955:
            self.queue.is_down = not self.queue.is_down and rng.random() < 0.5
        elif action < 0.965:
            self.queue.refused ^= {rng.randrange(1, len(self.written) + 2)}
        elif action < 0.975:
            self.decide_parked()
        elif action < 0.98:
            self.queue.window_ms = rng.choice((120_000, 600_000, 3_600_000))
        elif action < 0.99:
            self.run_users()
        elif self.with_failovers:
            self.fail_over()

    def run_a_relay(self) -> None:
        """Run one of two relays, usually the last one, up to its next pause."""
        if not self.runs:
            self.start_relay()
        place = -1 if self.rng.random() < 0.8 else 0
        try:
            next(self.runs[place][1])
        except StopIteration:
            del self.runs[place]
        for parked in self.database.tables.parked.values():
            self.judge_parked(parked)

    def start_relay(self) -> None:
        """Start a relay, which takes over. A former one stays frozen for as long as it may."""
        self.nonces += 1
        relay = self.relay_type(self.nonces, self.database, self.queue, self.late, self.rng, self.clock)
        self.runs = [*self.runs[-1:], (relay, relay.run())]

    def kill_relay(self) -> None:
        if self.runs:
            del self.runs[self.rng.randrange(len(self.runs))]

    def begin_transaction(self) -> None:
        """Insert a few rows, of which others see nothing yet."""
        for _ in range(self.rng.choice((1, 1, 2))):
            event, id = len(self.written) + 1, self.database.next_id
            self.database.next_id += 1
            written = Written(event, self.rng.choice(_GROUPS), self.at, self.clock[0])
            self.written[event] = self.open[id] = written
            self.database.open[id] = OutboxRow(id, written.row_group, event)

    def end_transaction(self) -> None:
        """Commit one of the open ones, whichever it is, or roll it back."""
        if not self.open:
            return
        id = self.rng.choice(list(self.open))
        written, row = self.open.pop(id), self.database.open.pop(id)
        if self.rng.random() < 0.1:
            return
        written.committed_at, written.committed_s = self.at, self.clock[0]
        self.by_id[id] = written
        self.database.tables.rows[id] = row
        self.database.on_commit()

    def run_users(self) -> None:
        """Begin and end transactions while all relays stand still."""
        for _ in range(self.rng.randrange(3, 25)):
            self.at += 1
            self.rng.choice(
                (self.begin_transaction, self.end_transaction, self.end_transaction, self.advance_a_little)
            )()

    def advance_a_little(self) -> None:
        self.advance(5)

    def advance(self, seconds: float) -> None:
        if self.with_failovers:
            seconds = min(seconds, 1)
        self.clock[0] += seconds
        self.queue.now_ms += int(seconds * 1_000)

    def deliver_late(self) -> None:
        if self.late:
            self.queue.enqueue(self.late.pop(self.rng.randrange(len(self.late))))

    def decide_parked(self) -> None:
        """An operator decides one parked row. Only one that may be queued can become two items."""
        parked = self.database.tables.parked
        if not parked:
            return
        id = self.rng.choice(list(parked))
        event = self.event(parked[id])
        if self.rng.random() < 0.5 and parked[id].verdict is None:
            self.dropped.add(event)
            del parked[id]
        else:
            parked[id].verdict = "resend"
            if parked[id].row.may_be_queued:
                self.may_double.add(event)
        self.database.on_commit()

    def fail_over(self) -> None:
        """Lose the last commits, and all open transactions. Ids are given out again."""
        database = self.database
        if not database.copies:
            return
        tables, next_id = database.copies.pop(self.rng.randrange(len(database.copies)))
        database.tables, database.next_id, database.copies = tables, next_id, []
        database.open, self.open = {}, {}
        kept = {event for row in tables.rows.values() if isinstance(event := row.item, int)}
        kept |= {self.event(parked) for parked in tables.parked.values()}
        for written in self.written.values():
            written.is_lost |= written.event not in kept and written.event not in self.queue.items

    def event(self, parked: Parked) -> int:
        assert isinstance(parked.row.item, int)
        return parked.row.item

    # ------------------------------------------------------------------ judgement

    def heal(self) -> str | None:
        """End all faults, and run one relay until nothing is left to do. Return what is not done in time."""
        while self.open:
            self.end_transaction()
        self.queue.is_down = False
        self.queue.refused = set()
        self.queue.window_ms = 3_600_000
        self.start_relay()
        relay = self.runs[-1][0]
        for _ in range(HEALED_STEPS_MAX):
            self.at += 1
            if relay.is_idle and not (self.database.tables.parked or self.database.tables.rows):
                return None
            self.runs = self.runs[-1:]
            self.run_a_relay()
            self.deliver_late()
            if self.at % 20 == 0:
                self.advance(1)
                self.decide_parked()
        tables = self.database.tables
        return f"left after the faults: rows {sorted(tables.rows)}, parked {sorted(tables.parked)}"

    def judge(self) -> str | None:
        """Return the first thing that is wrong with the items of the queue."""
        if self.problem is not None:
            return self.problem
        items = self.queue.items
        for event, written in self.written.items():
            count = items.count(event)
            if written.committed_at is None and count:
                return f"{event} was rolled back, and it is in the queue"
            if count > 1 and event not in self.may_double:
                return f"{event} is in the queue {count} times"
            if written.committed_at is not None and not count and not written.is_lost and event not in self.dropped:
                return f"{event} was committed, and it is not in the queue"
        return self._order()

    def judge_parked(self, parked: Parked) -> None:
        """Keep what is wrong with a row that is among the parked ones."""
        event, queue = self.event(parked), self.queue
        self.parked_once.add(event)
        group = self.written[event].row_group
        causes = {
            other for other in queue.refusals if other == event or (group and self.written[other].row_group == group)
        }
        if not causes:
            self.problem = f"{event} is parked, and no row of its group was refused"
        is_said = parked.row.may_be_queued or parked.verdict is not None or self.with_failovers
        if event in queue.items and not is_said:
            self.problem = f"{event} is parked as one that is not in the queue, and it is there"

    def _order(self) -> str | None:
        last: dict[str, list[Written]] = {}
        for event in dict.fromkeys(self.queue.items):
            written = self.written[event]
            if written.row_group is None or event in self.dropped:
                continue
            if written.committed_s - written.begun_s >= LIMITS.gap_keep_s:
                continue
            earlier = last.setdefault(written.row_group, [])
            assert written.committed_at is not None
            for other in earlier:
                are_decided = event in self.parked_once and other.event in self.parked_once
                if written.committed_at < other.begun_at and not are_decided:
                    return f"{event} is after {other.event} in group {written.row_group}, which began after its commit"
            earlier.append(written)
        return None


def play(seed: int, relay_type: type[PlainRelay] = PlainRelay, *, with_failovers: bool = False) -> str | None:
    """Return the first wrong thing of a history, or None."""
    history = History(seed, relay_type, with_failovers=with_failovers)
    for _ in range(STEPS):
        history.step()
    problem = history.heal() or history.judge()
    return None if problem is None else f"seed {seed}: {problem}"
