"""Why an item is not delivered, and what would change it, in words.

Holds what can be known of an item and of what is around it (`Scene`), and the
sentences that follow. Always true: one sentence for each reason, the weightiest
first; what is not known is said to be not known; nothing here decides what
becomes of an item, that is `life`. Pure; knows no shards and no calls.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from foqs.core.items.dead_reason import dead_reason
from foqs.core.items.item import DeliveryPolicy, Row, State

_UNITS: Final = (("days", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000))


@dataclass(slots=True, frozen=True, kw_only=True)
class ItemSnapshot:
    """What is known of one item at one moment. Times are of its shard; spans in milliseconds.

    Attributes:
        row: None where the table does not hold it, or was not read.
        unread: why its shard could not be asked; None when it was.
        is_written: False where its number was not given out yet, or is being written.
        is_suspended: its host does not know how long its shards are its own.
        is_reserved: a hand-out of it is being written.
        is_in_memory: its place in the order is held in memory.
        better: READY items of the topic that come before it; None where that is not known.
        is_all: False where counting stopped at `better`.
        waiting: consumers that wait for the topic.
        taken_ms_ago: since somebody took a ready item of the topic; None where nobody has, or too long ago to be remembered.
        payload_bytes_max: of its namespace, now.
        breaker: of its shard: closed, open or half-open.
        rate_wait_ms: until its namespace may enqueue another item.
    """

    id: str
    namespace: str
    row: Row | None
    now_ms: int = 0
    read_error: str | None = None
    is_written: bool = True
    store_error: str | None = None
    is_draining: bool = False
    is_suspended: bool = False
    is_paused: bool = False
    is_reserved: bool = False
    is_in_memory: bool = True
    better_count: int | None = 0
    is_better_count_exact: bool = True
    waiter_count: int = 0
    last_dequeue_ms_ago: int | None = None
    payload_bytes_max: int = 0
    breaker: str = "closed"
    rate_wait_ms: int = 0

    @property
    def is_blocked(self) -> bool:
        """Nobody gets it now, whoever waits."""
        return self.is_paused or self.is_suspended or self.is_draining or self.store_error is not None

    def cli_command(self, words: str, *more: str) -> str:
        """A command line of `foqs` for this item's namespace."""
        where = "" if self.namespace == "default" else f" -n {shlex.quote(self.namespace)}"
        return " ".join(["foqs", words, *map(shlex.quote, more)]) + where


@dataclass(slots=True)
class Explanation:
    """One sentence each; what would change it in the order of the reasons."""

    reasons: list[str] = field(default_factory=list)
    remedies: list[str] = field(default_factory=list)

    def add(self, reason: str, remedy: str | None = None) -> None:
        self.reasons.append(reason)
        if remedy is not None:
            self.remedies.append(remedy)


def explain(snapshot: ItemSnapshot) -> Explanation:
    """Why the item is not delivered."""
    told = Explanation()
    row = snapshot.row
    if snapshot.read_error is not None:
        told.add(
            f"The shard that holds the item cannot be asked just now: {snapshot.read_error}.",
            "Wait until the shard is served again, which needs no doing once its database answers; "
            "foqs doctor says what is wrong with a database.",
        )
    elif row is None:
        _explain_missing(snapshot, told)
    elif row.expires_at_ms is not None and row.expires_at_ms <= snapshot.now_ms and row.state in _STATES_WITH_TTL:
        told.add(
            f"Its TTL ended at {format_time(row.expires_at_ms)}, {format_duration(snapshot.now_ms - row.expires_at_ms)} ago: "
            "it is about to be deleted, undelivered.",
            "Enqueue it again, with a longer TTL or none.",
        )
    else:
        _EXPLAIN_STATE[row.state](snapshot, row, told)
    if snapshot.read_error is None:
        _explain_enqueues(snapshot, told)
    return told


# ------------------------------------------------------------------ by state


def _explain_missing(snapshot: ItemSnapshot, explanation: Explanation) -> None:
    if not snapshot.is_written:
        explanation.add(
            "No item has this id yet: its number was not given out, or its enqueue is being written.",
            "Use the id that enqueue returned; where you have it from there, ask again.",
        )
        return
    explanation.add(
        f"There is no such item in the namespace {snapshot.namespace!r}: it was acked, cancelled or purged, expired by its "
        "TTL, ended after its only delivery, aged out among the dead, or never was; nothing is kept of an item "
        "that is gone, so these cannot be told apart.",
        "Look whether id and namespace are right; if it is still to be done, enqueue it again.",
    )


def _explain_deferred(snapshot: ItemSnapshot, row: Row, explanation: Explanation) -> None:
    left_ms = row.deliver_after_ms - snapshot.now_ms
    now = "Have it delivered now: " + snapshot.cli_command("item update", snapshot.id, "--delay", "0")
    since = f" after attempt {_format_attempt(row)} ended without an ack" if row.attempt else ""
    if left_ms <= 0:
        explanation.add(
            f"It came due at {format_time(row.deliver_after_ms)}, {format_duration(-left_ms)} ago, and becomes ready when "
            "its shard's timers get to it.",
            "Wait a moment; when that takes longer than seconds, the shard's database is slow.",
        )
    elif row.expires_at_ms is not None and row.expires_at_ms <= row.deliver_after_ms:
        explanation.add(
            f"It is deferred{since} until {format_time(row.deliver_after_ms)}, but its TTL ends before that, at "
            f"{format_time(row.expires_at_ms)}, in {format_duration(row.expires_at_ms - snapshot.now_ms)}: it will be deleted, undelivered.",
            now,
        )
    else:
        explanation.add(
            f"It is deferred{since} until {format_time(row.deliver_after_ms)}, for another {format_duration(left_ms)}.",
            now,
        )
    _explain_pause(snapshot, row, explanation, "Its topic is paused too: when it comes due it stays where it is")
    _explain_ttl(snapshot, row, explanation)


def _explain_ready(snapshot: ItemSnapshot, row: Row, explanation: Explanation) -> None:
    if snapshot.store_error is not None:
        explanation.add(
            f"Its shard's database does not answer, so nothing of the shard is handed out: {snapshot.store_error}.",
            "Have the database answer again; the shard goes on by itself.",
        )
    if snapshot.is_draining:
        explanation.add("The host is stopping and hands out nothing more.", "Start the host again, or ask another.")
    if snapshot.is_suspended:
        explanation.add(
            "The coordination service does not answer this host, so it hands out nothing: its shards may soon be another's.",
            "Have ZooKeeper answer again: the host goes on by itself, or another takes its shards over.",
        )
    _explain_pause(snapshot, row, explanation, "Its topic is paused: nothing of it is handed out")
    if snapshot.is_reserved:
        explanation.add("It is being handed out at this moment.", "Ask again: it is leased, or ready once more.")
    else:
        _explain_order(snapshot, row, explanation)
    if row.payload_bytes > snapshot.payload_bytes_max:
        explanation.add(
            f"Its payload of {row.payload_bytes:,} bytes is larger than its namespace allows now, "
            f"{snapshot.payload_bytes_max:,}: dequeues of its namespace return fewer items at a time.",
            "Dequeue fewer items a call, or raise the limit again: "
            f"foqs namespace update {shlex.quote(snapshot.namespace)} --payload-bytes-max {row.payload_bytes}",
        )
    _explain_ttl(snapshot, row, explanation)


def _explain_order(snapshot: ItemSnapshot, row: Row, explanation: Explanation) -> None:
    """Where a ready item stands among others, and who asks for them."""
    if snapshot.better_count is None:
        explanation.add("How many better items come before it could not be counted just now.", "Ask again.")
    elif snapshot.better_count:
        items = "item" if snapshot.better_count == 1 and snapshot.is_better_count_exact else "items"
        more = "" if snapshot.is_better_count_exact else "more than "
        explanation.add(
            f"It is ready, and {more}{snapshot.better_count:,} better {items} of its topic, by priority, then by time, "
            f"{'comes' if items == 'item' else 'come'} before it.",
            "Add consumers, or give it a better priority than theirs: "
            + snapshot.cli_command("item update", snapshot.id, "--priority", str(row.priority - 1)),
        )
    else:
        explanation.add("It is ready, and the next of its topic.")
    if not snapshot.is_in_memory:
        explanation.add("It is not among those held in memory, and is read from its table when its turn comes.")
    if snapshot.waiter_count:
        wait = "1 consumer waits" if snapshot.waiter_count == 1 else f"{snapshot.waiter_count:,} consumers wait"
        if snapshot.is_blocked:
            explanation.add(f"{wait} for its topic, until something is handed out again.")
        else:
            explanation.add(
                f"{wait} for its topic, which should not last while an item is ready.",
                "Ask again: it should be leased.",
            )
    else:
        lately = (
            "nobody has taken a ready item of it that this host remembers"
            if snapshot.last_dequeue_ms_ago is None
            else f"the last who took a ready item of it came {format_duration(snapshot.last_dequeue_ms_ago)} ago"
        )
        explanation.add(f"No consumer waits for its topic, and {lately}.", "Have a consumer dequeue the topic.")


def _explain_leased(snapshot: ItemSnapshot, row: Row, explanation: Explanation) -> None:
    end_ms = snapshot.now_ms if row.due_ms is None else row.due_ms
    attempt = f"attempt {_format_attempt(row)}"
    left_ms = end_ms - snapshot.now_ms
    if left_ms <= 0:
        explanation.add(
            f"Its lease of {attempt} ended at {format_time(end_ms)}, {format_duration(-left_ms)} ago, and its shard's timers are about to "
            "judge it.",
            "Wait a moment; when that takes longer than seconds, the shard's database is slow.",
        )
    else:
        explanation.add(
            f"A consumer has it, {attempt}, with a lease until {format_time(end_ms)}, for another {format_duration(left_ms)}.",
            "Wait for its consumer to ack, nack or release it, or for the end of the lease; nobody else may take it before.",
        )
    explanation.add(f"Without an ack by then, {_after_lease(row, end_ms)}.")
    _explain_pause(
        snapshot, row, explanation, "Its topic is paused too: if it becomes ready again, it stays where it is"
    )


def _after_lease(row: Row, end_ms: int) -> str:
    """What the end of its lease makes of it; the same conditions, in the same order, as in `life`."""
    if row.policy is DeliveryPolicy.AT_MOST_ONCE:
        return "it is deleted, because it is delivered at most once"
    if row.expires_at_ms is not None and row.expires_at_ms <= end_ms:
        return "it is deleted, because its TTL is over then"
    if row.attempts_max and row.attempt >= row.attempts_max:
        return f"it is dead, because that was the last of {row.attempts_max} attempts"
    return "it is ready again at once"


def _explain_dead(snapshot: ItemSnapshot, row: Row, explanation: Explanation) -> None:
    explanation.add(
        f"It is dead, {dead_reason(row)}.",
        "Mend the cause, then have it delivered again: " + snapshot.cli_command("dead redrive", snapshot.id),
    )
    if row.due_ms is not None:
        explanation.add(
            f"It is kept until {format_time(row.due_ms)}, for another {format_duration(max(0, row.due_ms - snapshot.now_ms))}, then deleted."
        )
    _explain_pause(snapshot, row, explanation, "Its topic is paused too: once redriven, it stays where it is")


_STATES_WITH_TTL: Final = (State.DEFERRED, State.READY)
_EXPLAIN_STATE: Final = {
    State.DEFERRED: _explain_deferred,
    State.READY: _explain_ready,
    State.LEASED: _explain_leased,
    State.DEAD: _explain_dead,
}


# ------------------------------------------------------------ whatever the state


def _explain_pause(snapshot: ItemSnapshot, row: Row, explanation: Explanation, reason: str) -> None:
    if snapshot.is_paused:
        explanation.add(
            f"{reason} until the topic is resumed.", "Resume it: " + snapshot.cli_command("topic resume", row.topic)
        )


def _explain_ttl(snapshot: ItemSnapshot, row: Row, explanation: Explanation) -> None:
    expires_ms = row.expires_at_ms
    if expires_ms is not None and (row.state is State.READY or expires_ms > row.deliver_after_ms):
        explanation.add(
            f"It is deleted when it is not delivered by {format_time(expires_ms)}, within {format_duration(expires_ms - snapshot.now_ms)}."
        )


def _explain_enqueues(snapshot: ItemSnapshot, explanation: Explanation) -> None:
    """What holds up enqueues alone."""
    if snapshot.breaker != "closed":
        explanation.add(
            f"The breaker of its shard is {snapshot.breaker}, because its database is not well: that holds up new items "
            "alone, not this one.",
        )
    if snapshot.rate_wait_ms:
        explanation.add(
            f"Its namespace has used up its enqueues of this minute, for another {format_duration(snapshot.rate_wait_ms)}: that holds "
            "up new items alone, not this one.",
        )


# --------------------------------------------------------------------- words


def format_time(ms: int) -> str:
    """A moment for a person, in UTC."""
    return f"{datetime.fromtimestamp(ms // 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def format_duration(ms: int) -> str:
    """A time for a person, in its largest unit: `12.0 s`."""
    for unit, size in _UNITS:
        if ms >= size:
            return f"{ms / size:,.1f} {unit}"
    return f"{ms} ms"


def _format_attempt(row: Row) -> str:
    return f"{row.attempt} of {row.attempts_max}" if row.attempts_max else str(row.attempt)
