"""The rows of the race: what each means, how a cell of it is run, and who cannot run it.

Always true: a row and a system give a plan of a cell, or the reason for a dash. The
sentences are those of the table and of docs/race.md. Knows nothing of servers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from perf.lib.trial import Trial

RATE, KILLED, SNAPSHOT, REPORT = "rate", "killed", "snapshot", "report"
"""The kinds of rows: what is done during a cell."""
P99: Final = {SNAPSHOT: "delivery_p99_ms", REPORT: "enqueue_p99_ms"}
"""The latency that counts. On a backlog an item's way through the queue measures the backlog."""


@dataclass(slots=True, frozen=True)
class Racer:
    """A system of the race.

    Attributes:
        label: its name for people, with places for the versions of its parts.
        is_sql: it keeps its items in tables, so a snapshot and a report can be run beside it.
        overhead_s: about how long it takes to start, connect, empty and stop, for the estimate of a run.
        fill_per_s: about how many items of a backlog are written in a second, for the same.
    """

    system: str
    label: str
    is_sql: bool = False
    joins_calls: bool = False
    overhead_s: float = 5.0
    fill_per_s: int = 60_000

    def named(self, versions: Mapping[str, str]) -> str:
        """Return its label with these versions, without those that are not known."""
        known = {"mysql9": "9"} | {name: text.split("-")[0] for name, text in versions.items()}
        return re.sub(r" \{(\w+)\}", lambda found: f" {known[found[1]]}" if found[1] in known else "", self.label)


RACERS: Final = (
    Racer("foqs-mariadb", "FOQS on MariaDB {mariadb}", is_sql=True, joins_calls=True, overhead_s=4.0),
    Racer("foqs-mysql9", "FOQS on MySQL {mysql9}", is_sql=True, joins_calls=True, overhead_s=5.5),
    Racer("foqs-sqlite", "FOQS on SQLite {sqlite}", is_sql=True, joins_calls=True, overhead_s=3.5),
    Racer("postgres", "Postgres {postgres} by hand", is_sql=True, overhead_s=3.5),
    Racer("mariadb-prebuilt", "MariaDB {mariadb} by hand", is_sql=True, overhead_s=4.0),
    Racer("pgqueuer", "PgQueuer {pgqueuer} on Postgres {postgres}", is_sql=True, overhead_s=4.5),
    Racer("redis", "Redis {redis}", overhead_s=2.5),
    Racer("rabbitmq-classic", "RabbitMQ {rabbitmq}, classic", overhead_s=9.0, fill_per_s=15_000),
    Racer("rabbitmq-quorum", "RabbitMQ {rabbitmq}, quorum", overhead_s=9.0, fill_per_s=15_000),
    Racer("nats", "NATS JetStream {nats}", overhead_s=4.5, fill_per_s=25_000),
    Racer("beanstalkd", "beanstalkd {beanstalkd}", overhead_s=7.0, fill_per_s=40_000),
)


@dataclass(slots=True, frozen=True)
class Length:
    """How long the cells of a row are measured.

    Attributes:
        rounds: how often each cell is measured; medians are shown.
        seconds: of a measured window; with slices, of each slice.
        slices: of a snapshot or a report, the first of which are without it.
        before: how many of the slices are without it.
        every: the slices from one report to the next; 0: a snapshot is held to the end.
        kills: how often a consumer is killed.
        lease_s: how long a consumer has an item.
        backlog: items in the queue at the beginning.
    """

    rounds: int
    seconds: float
    slices: int = 0
    before: int = 0
    every: int = 0
    kills: int = 0
    lease_s: float | None = None
    backlog: int = 0


@dataclass(slots=True, frozen=True)
class Row:
    """One row of the race.

    Attributes:
        title: in a few words.
        says: what it means, in one sentence.
        trial: the parameters of its cells.
        whole, short: how long it is measured in the two forms of a run.
        cannot: the reason for a dash, by system.
    """

    key: str
    title: str
    says: str
    trial: Trial
    whole: Length
    short: Length
    kind: str = RATE
    cannot: Mapping[str, str] = field(default_factory=dict)

    def length(self, *, short: bool) -> Length:
        return self.short if short else self.whole


_PLAIN: Final = Trial(warmup_s=1.0)
_AHEAD: Final = replace(_PLAIN, callers=16, producers=8)
_JOINS_NOT: Final = {racer.system: "its client sends each call alone" for racer in RACERS if not racer.joins_calls}
_NO_SQL: Final = {racer.system: "no SQL database" for racer in RACERS if not racer.is_sql}
_MANY_QUEUES: Final = {
    "rabbitmq-quorum": "a topic is a queue, and 10,000 quorum queues are 10,000 Raft groups",
    "rabbitmq-classic": "a topic is a queue, and it takes minutes to declare 10,000 durable ones with priorities",
}

ROWS: Final = (
    Row(
        "calls-100", "calls of 100",
        "Producers and consumers run at once, with 100 items of 1 KiB in each call and 64 callers.",
        _PLAIN, Length(3, 3), Length(1, 1.5),
    ),
    Row(
        "one-item", "one item per call, as sent",
        "One item of 1 KiB in each call, with 64 callers, and each call is sent on its own.",
        replace(_PLAIN, batch=1, gather=False), Length(3, 3), Length(1, 1.5),
    ),
    Row(
        "coalesced", "one item per call, coalesced",
        "One item of 1 KiB in each call, with 64 callers, and the client joins calls that several callers make in the same moment.",
        replace(_PLAIN, batch=1), Length(3, 3), Length(1, 1.5), cannot=_JOINS_NOT,
    ),
    Row(
        "small", "items of 100 bytes",
        "Calls of 100, with payloads of 100 bytes in place of 1 KiB.",
        replace(_PLAIN, payload_bytes=100), Length(2, 3), Length(1, 1.5),
    ),
    Row(
        "large", "items of 10 KiB",
        "Calls of 100, with payloads of 10 KiB.",
        # A shorter queue, as the same number of items would be 250 MB.
        replace(_PLAIN, payload_bytes=10_240, callers=24), Length(2, 3), Length(1, 1.5),
    ),
    Row(
        "ahead", "producers ahead",
        "Calls of 100 by 8 producers and 8 consumers, so that consumers fall behind and every item waits in the queue.",
        _AHEAD, Length(3, 3), Length(1, 1.5),
    ),
    Row(
        "backlog", "a backlog",
        "Calls of 100 while a million items of 100 bytes wait in the queue; at the end the system's own count of "
        "items must be right.",
        replace(_PLAIN, payload_bytes=100, empty=False), Length(1, 4, backlog=1_000_000), Length(1, 1.5, backlog=100_000),
    ),
    Row(
        "topics", "10,000 topics",
        "As with producers ahead, over 10,000 topics: the items of a call are of 100 topics, and a consumer takes from 100 others.",
        replace(_AHEAD, topics=10_000), Length(2, 3), Length(1, 1.5), cannot=_MANY_QUEUES,
    ),
    Row(
        "killed", "a consumer killed",
        "Calls of 100 to two consumer processes that work 50 ms on each call; one of them is killed every ten seconds "
        "and replaced: items lost, items done twice, and the time until the items it had are delivered again.",
        replace(_PLAIN, callers=48, processes=2, work_s=0.05), Length(1, 10, kills=2, lease_s=5.0), Length(1, 4, kills=2, lease_s=2.0),
        kind=KILLED,
    ),
    Row(
        "snapshot", "a snapshot held",
        "Calls of 100 while a second user of the database holds a transaction that has read every table, as a backup "
        "does: the rate, the p99 latency and the database's CPU per item in each minute.",
        _PLAIN, Length(1, 60, slices=11, before=1), Length(1, 8, slices=4, before=1), kind=SNAPSHOT, cannot=_NO_SQL,
    ),
    Row(
        "report", "a report every minute",
        "Calls of 100 over a backlog of 100,000 items of 1 KiB while a second user of the database reads the whole "
        "table once a minute.",
        replace(_PLAIN, empty=False), Length(1, 20, slices=5, before=1, every=3, backlog=100_000),
        Length(1, 5, slices=3, before=1, every=12, backlog=50_000), kind=REPORT, cannot=_NO_SQL,
    ),
)  # fmt: skip


@dataclass(slots=True, frozen=True)
class Cell:
    """A row and a system, to be measured once."""

    row: Row
    racer: Racer
    trial: Trial
    length: Length

    @property
    def estimate_s(self) -> float:
        """About how long it takes."""
        length = self.length
        measured = length.seconds * (length.slices or length.kills or 1)
        killed = (length.lease_s or 0.0) * 1.5 + 2.0 if length.kills else 0.0
        filling = length.backlog / self.racer.fill_per_s
        return self.racer.overhead_s + self.trial.warmup_s + measured + killed + filling


def plan(rows: Iterable[Row], racers: Sequence[Racer], *, short: bool) -> list[Cell]:
    """Return the cells in the order of measuring: row by row, in rounds in which the systems alternate."""
    cells = []
    for row in rows:
        length = row.length(short=short)
        running = [racer for racer in racers if racer.system not in row.cannot]
        for number in range(length.rounds):
            # Every second round runs backwards, so that no system always follows the same one.
            for racer in running[:: 1 if number % 2 == 0 else -1]:
                cells.append(Cell(row, racer, _trial(row, racer, length, short=short), length))
    return cells


def _trial(row: Row, racer: Racer, length: Length, *, short: bool) -> Trial:
    trial = replace(row.trial, system=racer.system, seconds=length.seconds, backlog=length.backlog)
    if short:
        trial = replace(trial, warmup_s=0.5)
    return trial if length.lease_s is None else replace(trial, lease_s=length.lease_s)


def dashes(rows: Iterable[Row], racers: Iterable[Racer]) -> dict[tuple[str, str], str]:
    """Return the reason for each cell, by row and system, that no run can fill."""
    systems = [racer.system for racer in racers]
    return {(row.key, system): row.cannot[system] for row in rows for system in systems if system in row.cannot}


def row(key: str) -> Row:
    """Return the row of that key."""
    return next(known for known in ROWS if known.key == key)


def racer(system: str) -> Racer:
    """Return the racer of that system."""
    return next(known for known in RACERS if known.system == system)
