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

from foqs.core.dead import dead_reason
from foqs.core.item import Delivery, Row, State

_SPANS: Final = (("days", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000))


@dataclass(slots=True, frozen=True, kw_only=True)
class Scene:
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
    unread: str | None = None
    is_written: bool = True
    trouble: str | None = None
    is_draining: bool = False
    is_suspended: bool = False
    is_paused: bool = False
    is_reserved: bool = False
    is_in_memory: bool = True
    better: int | None = 0
    is_all: bool = True
    waiting: int = 0
    taken_ms_ago: int | None = None
    payload_bytes_max: int = 0
    breaker: str = "closed"
    rate_wait_ms: int = 0

    @property
    def is_held_up(self) -> bool:
        """Nobody gets it now, whoever waits."""
        return self.is_paused or self.is_suspended or self.is_draining or self.trouble is not None

    def command(self, words: str, *more: str) -> str:
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


def explain(scene: Scene) -> Explanation:
    """Why the item is not delivered."""
    told = Explanation()
    row = scene.row
    if scene.unread is not None:
        told.add(
            f"The shard that holds the item cannot be asked just now: {scene.unread}.",
            "Wait until the shard is served again, which needs no doing once its database answers; "
            "foqs doctor says what is wrong with a database.",
        )
    elif row is None:
        _missing(scene, told)
    elif row.expires_at_ms is not None and row.expires_at_ms <= scene.now_ms and row.state in _UNTIL_TTL:
        told.add(
            f"Its TTL ended at {when(row.expires_at_ms)}, {span(scene.now_ms - row.expires_at_ms)} ago: "
            "it is about to be deleted, undelivered.",
            "Enqueue it again, with a longer TTL or none.",
        )
    else:
        _STATES[row.state](scene, row, told)
    if scene.unread is None:
        _new_items(scene, told)
    return told


# ------------------------------------------------------------------ by state


def _missing(scene: Scene, told: Explanation) -> None:
    if not scene.is_written:
        told.add(
            "No item has this id yet: its number was not given out, or its enqueue is being written.",
            "Use the id that enqueue returned; where you have it from there, ask again.",
        )
        return
    told.add(
        f"There is no such item in the namespace {scene.namespace!r}: it was acked, cancelled or purged, expired by its "
        "TTL, ended after its only delivery, aged out among the dead, or never was; nothing is kept of an item "
        "that is gone, so these cannot be told apart.",
        "Look whether id and namespace are right; if it is still to be done, enqueue it again.",
    )


def _deferred(scene: Scene, row: Row, told: Explanation) -> None:
    left_ms = row.deliver_after_ms - scene.now_ms
    now = "Have it delivered now: " + scene.command("item update", scene.id, "--delay", "0")
    since = f" after attempt {_attempt(row)} ended without an ack" if row.attempt else ""
    if left_ms <= 0:
        told.add(
            f"It came due at {when(row.deliver_after_ms)}, {span(-left_ms)} ago, and becomes ready when "
            "its shard's timers get to it.",
            "Wait a moment; when that takes longer than seconds, the shard's database is slow.",
        )
    elif row.expires_at_ms is not None and row.expires_at_ms <= row.deliver_after_ms:
        told.add(
            f"It is deferred{since} until {when(row.deliver_after_ms)}, but its TTL ends before that, at "
            f"{when(row.expires_at_ms)}, in {span(row.expires_at_ms - scene.now_ms)}: it will be deleted, undelivered.",
            now,
        )
    else:
        told.add(f"It is deferred{since} until {when(row.deliver_after_ms)}, for another {span(left_ms)}.", now)
    _pause(scene, row, told, "Its topic is paused too: when it comes due it stays where it is")
    _ttl(scene, row, told)


def _ready(scene: Scene, row: Row, told: Explanation) -> None:
    if scene.trouble is not None:
        told.add(
            f"Its shard's database does not answer, so nothing of the shard is handed out: {scene.trouble}.",
            "Have the database answer again; the shard goes on by itself.",
        )
    if scene.is_draining:
        told.add("The host is stopping and hands out nothing more.", "Start the host again, or ask another.")
    if scene.is_suspended:
        told.add(
            "The coordination service does not answer this host, so it hands out nothing: its shards may soon be another's.",
            "Have ZooKeeper answer again: the host goes on by itself, or another takes its shards over.",
        )
    _pause(scene, row, told, "Its topic is paused: nothing of it is handed out")
    if scene.is_reserved:
        told.add("It is being handed out at this moment.", "Ask again: it is leased, or ready once more.")
    else:
        _order(scene, row, told)
    if row.payload_bytes > scene.payload_bytes_max:
        told.add(
            f"Its payload of {row.payload_bytes:,} bytes is larger than its namespace allows now, "
            f"{scene.payload_bytes_max:,}: dequeues of its namespace return fewer items at a time.",
            "Dequeue fewer items a call, or raise the limit again: "
            f"foqs namespace update {shlex.quote(scene.namespace)} --payload-bytes-max {row.payload_bytes}",
        )
    _ttl(scene, row, told)


def _order(scene: Scene, row: Row, told: Explanation) -> None:
    """Where a ready item stands among others, and who asks for them."""
    if scene.better is None:
        told.add("How many better items come before it could not be counted just now.", "Ask again.")
    elif scene.better:
        items = "item" if scene.better == 1 and scene.is_all else "items"
        more = "" if scene.is_all else "more than "
        told.add(
            f"It is ready, and {more}{scene.better:,} better {items} of its topic, by priority, then by time, "
            f"{'comes' if items == 'item' else 'come'} before it.",
            "Add consumers, or give it a better priority than theirs: "
            + scene.command("item update", scene.id, "--priority", str(row.priority - 1)),
        )
    else:
        told.add("It is ready, and the next of its topic.")
    if not scene.is_in_memory:
        told.add("It is not among those held in memory, and is read from its table when its turn comes.")
    if scene.waiting:
        wait = "1 consumer waits" if scene.waiting == 1 else f"{scene.waiting:,} consumers wait"
        if scene.is_held_up:
            told.add(f"{wait} for its topic, until something is handed out again.")
        else:
            told.add(
                f"{wait} for its topic, which should not last while an item is ready.",
                "Ask again: it should be leased.",
            )
    else:
        lately = (
            "nobody has taken a ready item of it that this host remembers"
            if scene.taken_ms_ago is None
            else f"the last who took a ready item of it came {span(scene.taken_ms_ago)} ago"
        )
        told.add(f"No consumer waits for its topic, and {lately}.", "Have a consumer dequeue the topic.")


def _leased(scene: Scene, row: Row, told: Explanation) -> None:
    end_ms = scene.now_ms if row.due_ms is None else row.due_ms
    attempt = f"attempt {_attempt(row)}"
    left_ms = end_ms - scene.now_ms
    if left_ms <= 0:
        told.add(
            f"Its lease of {attempt} ended at {when(end_ms)}, {span(-left_ms)} ago, and its shard's timers are about to "
            "judge it.",
            "Wait a moment; when that takes longer than seconds, the shard's database is slow.",
        )
    else:
        told.add(
            f"A consumer has it, {attempt}, with a lease until {when(end_ms)}, for another {span(left_ms)}.",
            "Wait for its consumer to ack, nack or release it, or for the end of the lease; nobody else may take it before.",
        )
    told.add(f"Without an ack by then, {_after_lease(row, end_ms)}.")
    _pause(scene, row, told, "Its topic is paused too: if it becomes ready again, it stays where it is")


def _after_lease(row: Row, end_ms: int) -> str:
    """What the end of its lease makes of it; the same conditions, in the same order, as in `life`."""
    if row.policy is Delivery.AT_MOST_ONCE:
        return "it is deleted, because it is delivered at most once"
    if row.expires_at_ms is not None and row.expires_at_ms <= end_ms:
        return "it is deleted, because its TTL is over then"
    if row.attempts_max and row.attempt >= row.attempts_max:
        return f"it is dead, because that was the last of {row.attempts_max} attempts"
    return "it is ready again at once"


def _dead(scene: Scene, row: Row, told: Explanation) -> None:
    told.add(
        f"It is dead, {dead_reason(row)}.",
        "Mend the cause, then have it delivered again: " + scene.command("dead redrive", scene.id),
    )
    if row.due_ms is not None:
        told.add(
            f"It is kept until {when(row.due_ms)}, for another {span(max(0, row.due_ms - scene.now_ms))}, then deleted."
        )
    _pause(scene, row, told, "Its topic is paused too: once redriven, it stays where it is")


_UNTIL_TTL: Final = (State.DEFERRED, State.READY)
_STATES: Final = {State.DEFERRED: _deferred, State.READY: _ready, State.LEASED: _leased, State.DEAD: _dead}


# ------------------------------------------------------------ whatever the state


def _pause(scene: Scene, row: Row, told: Explanation, reason: str) -> None:
    if scene.is_paused:
        told.add(f"{reason} until the topic is resumed.", "Resume it: " + scene.command("topic resume", row.topic))


def _ttl(scene: Scene, row: Row, told: Explanation) -> None:
    expires_ms = row.expires_at_ms
    if expires_ms is not None and (row.state is State.READY or expires_ms > row.deliver_after_ms):
        told.add(
            f"It is deleted when it is not delivered by {when(expires_ms)}, within {span(expires_ms - scene.now_ms)}."
        )


def _new_items(scene: Scene, told: Explanation) -> None:
    """What holds up enqueues alone."""
    if scene.breaker != "closed":
        told.add(
            f"The breaker of its shard is {scene.breaker}, because its database is not well: that holds up new items "
            "alone, not this one.",
        )
    if scene.rate_wait_ms:
        told.add(
            f"Its namespace has used up its enqueues of this minute, for another {span(scene.rate_wait_ms)}: that holds "
            "up new items alone, not this one.",
        )


# --------------------------------------------------------------------- words


def when(ms: int) -> str:
    """A moment for a person, in UTC."""
    return f"{datetime.fromtimestamp(ms // 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def span(ms: int) -> str:
    """A time for a person, in its largest unit: `12.0 s`."""
    for unit, size in _SPANS:
        if ms >= size:
            return f"{ms / size:,.1f} {unit}"
    return f"{ms} ms"


def _attempt(row: Row) -> str:
    return f"{row.attempt} of {row.attempts_max}" if row.attempts_max else str(row.attempt)
