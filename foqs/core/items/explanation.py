"""Explains why an item is not delivered, and what would change that.

Holds the facts about an item and its surroundings (`ItemSnapshot`), and turns them
into sentences. Always true: one sentence per reason, the most important first; an
unknown fact is called unknown. Decides nothing about the item: that is `life`.
Pure; knows no shards and no calls.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from foqs.core.items.item import GIVEN_UP_MS, PRIORITY_MIN, DeliveryPolicy, Row, State
from foqs_contract.plurals import counted

_UNITS: Final = (("days", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000))


HOLDERS_SHOWN_MAX: Final = 10
"""The items of a group that an explanation names."""


@dataclass(slots=True, frozen=True, kw_only=True)
class ItemSnapshot:
    """The known facts about one item at one moment. Times are on the shard's clock.

    Attributes:
        row: None if the table has no such row, or was not read.
        read_error: why the shard could not be read; None if it was.
        is_written: False if the item's number is not assigned yet, or the item is being written.
        store_error: why the shard's database does not answer; None if it does.
        suspension: why the host delivers nothing for now, and the remedy; None if it delivers.
        is_reserved: a delivery of the item is being written.
        group_limit: the limit of its group on leases, if the group holds it back; else None.
        group_holders: the items of its group that come first, as far as they are in memory.
        is_fair: the groups of its topic take turns.
        groups_before: of a fair topic, how many groups have their turn before that of its own; None if its own is not known yet.
        items_before: of a fair topic, the items of its group that are known to come first.
        group_items_before: the READY items of its group that are known to come first; None if they are not known.
        is_in_memory: the ready index holds the item's key.
        better_count: READY items of the topic before this one; None if unknown.
        is_better_count_exact: False if counting stopped at `better_count`.
        best_priority: the priority of the best READY item of the topic, as far as this host knows it.
        waiter_count: consumers that wait for the topic.
        last_dequeue_ms_ago: time since the last dequeue of a ready item of the topic; None if none is remembered.
        payload_bytes_max: the namespace's present limit.
        breaker: the state of the shard's circuit breaker: closed, open or half-open.
        rate_wait_ms: time until the namespace may enqueue another item.
    """

    id: str
    namespace: str
    row: Row | None
    now_ms: int = 0
    read_error: str | None = None
    is_written: bool = True
    store_error: str | None = None
    is_stopping: bool = False
    suspension: tuple[str, str] | None = None
    is_paused: bool = False
    is_reserved: bool = False
    group_limit: int | None = None
    group_holders: Sequence[str] = ()
    is_fair: bool = False
    groups_before: int | None = None
    items_before: int = 0
    group_items_before: int | None = None
    is_in_memory: bool = True
    better_count: int | None = 0
    is_better_count_exact: bool = True
    best_priority: int | None = None
    waiter_count: int = 0
    last_dequeue_ms_ago: int | None = None
    payload_bytes_max: int = 0
    breaker: str = "closed"
    rate_wait_ms: int = 0

    @property
    def is_blocked(self) -> bool:
        """Whether the item cannot be delivered now, even to a waiting consumer."""
        return self.is_paused or self.suspension is not None or self.is_stopping or self.store_error is not None

    def cli_command(self, subcommand: str, *arguments: str) -> str:
        """Return a `foqs` command line for this item's namespace."""
        option = "" if self.namespace == "default" else f" -n {shlex.quote(self.namespace)}"
        return " ".join(["foqs", subcommand, *map(shlex.quote, arguments)]) + option


@dataclass(slots=True)
class Reasons:
    """Reasons and remedies, one sentence each. The remedies are in the order of their reasons."""

    reasons: list[str] = field(default_factory=list)
    remedies: list[str] = field(default_factory=list)

    def add(self, reason: str, remedy: str | None = None) -> None:
        self.reasons.append(reason)
        if remedy is not None:
            self.remedies.append(remedy)


def explain(snapshot: ItemSnapshot) -> Reasons:
    """Return the reasons why the item is not delivered, with remedies."""
    explanation = Reasons()
    row = snapshot.row
    if snapshot.read_error is not None:
        explanation.add(
            f"The shard of the item cannot be read now: {snapshot.read_error}.",
            "Wait until the shard is served again. That happens by itself once its database answers; "
            "foqs doctor says what is wrong with a database.",
        )
    elif row is None:
        _explain_missing(snapshot, explanation)
    elif row.expires_at_ms is not None and row.expires_at_ms <= snapshot.now_ms and row.state in _STATES_WITH_TTL:
        explanation.add(
            f"Its TTL ended at {format_time(row.expires_at_ms)}, {format_duration(snapshot.now_ms - row.expires_at_ms)} ago: "
            "it is about to be deleted, undelivered.",
            "Enqueue it again, with a longer TTL or none.",
        )
    else:
        _EXPLAIN_STATE[row.state](snapshot, row, explanation)
    if snapshot.read_error is None:
        _explain_enqueues(snapshot, explanation)
    return explanation


def dead_reason(row: Row) -> str | None:
    """Say why a DEAD row is dead; return None for any other row.

    An item that its consumer gave up in the last attempt counts as out of attempts.
    """
    if row.state is not State.DEAD:
        return None
    if row.deliver_after_ms == GIVEN_UP_MS:
        return (
            "given up because the database does not hold its row or its payload; the log of its shard's owner says why"
        )
    if row.attempts_max and row.attempt >= row.attempts_max:
        return (
            f"attempts exhausted: delivered {row.attempt} of at most {counted(row.attempts_max, 'time')} without an ack"
        )
    maximum = f" of {row.attempts_max}" if row.attempts_max else ""
    return f"given up by its consumer in attempt {row.attempt}{maximum}"


# ------------------------------------------------------------------ by state


def _explain_missing(snapshot: ItemSnapshot, explanation: Reasons) -> None:
    if not snapshot.is_written:
        explanation.add(
            "No item has this id yet: its number is not in use, or its enqueue is being written.",
            "Use an id that enqueue returned. If this is one, ask again.",
        )
        return
    explanation.add(
        f"There is no such item in the namespace {snapshot.namespace!r}: it was acked, cancelled, purged or expired, "
        "its only delivery ended, its retention as a dead item ended, or it never existed. A deleted item leaves no "
        "trace, so these cannot be distinguished.",
        "Check the id and the namespace. If the work is still to be done, enqueue it again.",
    )


def _explain_deferred(snapshot: ItemSnapshot, row: Row, explanation: Reasons) -> None:
    left_ms = row.ready_at_ms - snapshot.now_ms
    remedy = "Have it delivered now: " + snapshot.cli_command("item update", snapshot.id, "--delay", "0")
    since = f" after attempt {_format_attempt(row)} ended without an ack" if row.attempt else ""
    if left_ms <= 0:
        explanation.add(
            f"It came due at {format_time(row.ready_at_ms)}, {format_duration(-left_ms)} ago, and its shard is about to "
            "make it ready.",
            "Wait a moment. If that takes longer than seconds, the shard's database is slow.",
        )
    elif row.expires_at_ms is not None and row.expires_at_ms <= row.ready_at_ms:
        explanation.add(
            f"It is deferred{since} until {format_time(row.ready_at_ms)}, but its TTL ends before that, at "
            f"{format_time(row.expires_at_ms)}, in {format_duration(row.expires_at_ms - snapshot.now_ms)}: it will be deleted, undelivered.",
            remedy,
        )
    else:
        explanation.add(
            f"It is deferred{since} until {format_time(row.ready_at_ms)}, for another {format_duration(left_ms)}.",
            remedy,
        )
    _explain_pause(snapshot, row, explanation, "Its topic is paused too: when it comes due, it is not delivered")
    _explain_ttl(snapshot, row, explanation)


def _explain_ready(snapshot: ItemSnapshot, row: Row, explanation: Reasons) -> None:
    if snapshot.store_error is not None:
        explanation.add(
            f"Its shard's database does not answer, so the shard delivers nothing: {snapshot.store_error}.",
            "Repair the database; the shard then continues by itself.",
        )
    if snapshot.is_stopping:
        explanation.add("The host is stopping and delivers nothing more.", "Start the host again, or ask another.")
    if snapshot.suspension is not None:
        explanation.add(*snapshot.suspension)
    _explain_pause(snapshot, row, explanation, "Its topic is paused: no item of it is delivered")
    if snapshot.is_reserved:
        explanation.add("It is being delivered at this moment.", "Ask again: it is then leased, or ready again.")
    elif snapshot.group_limit is not None:
        _explain_group(snapshot, row, snapshot.group_limit, explanation)
        _explain_missing_demand(snapshot, explanation)
    else:
        if snapshot.is_fair:
            _explain_turn(snapshot, row, explanation)
        else:
            _explain_order(snapshot, row, explanation)
        _explain_waiters(snapshot, explanation)
        _explain_missing_demand(snapshot, explanation)
    if row.payload_bytes > snapshot.payload_bytes_max:
        explanation.add(
            f"Its payload of {row.payload_bytes:,} bytes is larger than its namespace allows now, "
            f"{snapshot.payload_bytes_max:,}: dequeues of its namespace return fewer items at a time.",
            "Dequeue fewer items per call, or raise the limit again: "
            f"foqs namespace update {shlex.quote(snapshot.namespace)} --payload-bytes-max {row.payload_bytes}",
        )
    _explain_ttl(snapshot, row, explanation)


def _explain_group(snapshot: ItemSnapshot, row: Row, limit: int, explanation: Reasons) -> None:
    """Explain what holds a ready item back whose group has a limit on its leases."""
    subject = "it" if row.item_group is None else f"its group {row.item_group.decode()!r}"
    shown = list(snapshot.group_holders[:HOLDERS_SHOWN_MAX])
    if not shown:
        explanation.add(
            f"It is ready, but {subject} has no room: as many groups of such topics are under delivery as fit into memory.",
            "It comes when other groups have ended. Look at foqs_group_units and foqs_group_limit_units of its shard: "
            "shard.ready_index_items_max raises the limit.",
        )
        return
    allowed = counted(limit, "delivered item") if limit > 1 else "1 delivered item, or 1 run,"
    rule = f"It is ready, but {subject} holds it back: the policy of its topic allows {allowed} of a group at once"
    more = len(snapshot.group_holders) - len(shown)
    others = f" and {more} more" if more else ""
    come = "comes" if len(snapshot.group_holders) == 1 else "come"
    explanation.add(
        f"{rule}, and {', '.join(shown)}{others} {come} first.",
        "Wait until that is settled, or see why it is not: " + snapshot.cli_command("explain", shown[0]),
    )
    if row.item_group is not None and snapshot.group_items_before:
        items = counted(snapshot.group_items_before, "known ready item")
        explanation.add(
            f"Of its group, {items} {'comes' if snapshot.group_items_before == 1 else 'come'} before it.",
            "See its group: " + snapshot.cli_command("topic groups", row.topic, "--group", row.item_group.decode()),
        )


def _explain_order(snapshot: ItemSnapshot, row: Row, explanation: Reasons) -> None:
    """Explain the place of a ready item among others."""
    if snapshot.better_count is None:
        explanation.add("The better items before it could not be counted now.", "Ask again.")
    elif snapshot.better_count:
        items = "item" if snapshot.better_count == 1 and snapshot.is_better_count_exact else "items"
        at_least = "" if snapshot.is_better_count_exact else "more than "
        best = row.priority if snapshot.best_priority is None else min(row.priority, snapshot.best_priority)
        explanation.add(
            f"It is ready, and {at_least}{snapshot.better_count:,} better {items} of its topic, by priority, then by time, "
            f"{'comes' if items == 'item' else 'come'} before it.",
            "Add consumers, or give it a better priority than theirs: "
            + snapshot.cli_command("item update", snapshot.id, "--priority", str(max(PRIORITY_MIN, best - 1))),
        )
    else:
        explanation.add("It is ready, and the next of its topic.")
    if not snapshot.is_in_memory:
        explanation.add("It is not in memory; it is read from its table when its turn comes.")


def _explain_turn(snapshot: ItemSnapshot, row: Row, explanation: Reasons) -> None:
    """Explain the place of a ready item of a fair topic: that of its group among others, and its own in the group."""
    if snapshot.groups_before is None:
        explanation.add(
            "It is ready, but its group has no turn yet: the rows of a fair topic are read when it is dequeued, and as many "
            "groups take turns as fit into memory.",
            "Ask again. If that lasts while the topic is dequeued, look at foqs_group_units and foqs_group_limit_units of its shard: "
            "shard.ready_index_items_max raises the limit.",
        )
        return
    whose = "its turn" if row.item_group is None else f"the turn of its group {row.item_group.decode()!r}"
    others = "is next"
    if snapshot.groups_before:
        others = f"comes after that of {counted(snapshot.groups_before, 'other group')} on this host"
    items = counted(snapshot.items_before, "item of the group comes", "items of the group come")
    first = f", and {items} before it" if snapshot.items_before else ""
    explanation.add(
        f"It is ready, and groups of its topic take turns: {whose} {others}{first}.",
        "Add consumers, or give its group a higher weight in the policy of the topic." if others != "is next" else None,
    )


def _explain_waiters(snapshot: ItemSnapshot, explanation: Reasons) -> None:
    """Explain which consumers wait for the topic of a ready item."""
    if snapshot.waiter_count:
        wait = counted(snapshot.waiter_count, "consumer waits", "consumers wait")
        if snapshot.is_blocked:
            explanation.add(f"{wait} for its topic, until items are delivered again.")
        else:
            explanation.add(
                f"{wait} for its topic, which should not last while an item is ready.",
                "Ask again: it should be leased.",
            )


def _explain_missing_demand(snapshot: ItemSnapshot, explanation: Reasons) -> None:
    if not snapshot.waiter_count:
        last_dequeue = (
            "this host remembers no dequeue of a ready item of it"
            if snapshot.last_dequeue_ms_ago is None
            else f"the last dequeue of a ready item of it was {format_duration(snapshot.last_dequeue_ms_ago)} ago"
        )
        explanation.add(f"No consumer waits for its topic, and {last_dequeue}.", "Have a consumer dequeue the topic.")


def _explain_leased(snapshot: ItemSnapshot, row: Row, explanation: Reasons) -> None:
    end_ms = snapshot.now_ms if row.due_ms is None else row.due_ms
    attempt = f"attempt {_format_attempt(row)}"
    left_ms = end_ms - snapshot.now_ms
    if left_ms <= 0:
        explanation.add(
            f"Its lease of {attempt} ended at {format_time(end_ms)}, {format_duration(-left_ms)} ago, and its shard is about to "
            "process that.",
            "Wait a moment. If that takes longer than seconds, the shard's database is slow.",
        )
    else:
        explanation.add(
            f"A consumer has it, {attempt}, with a lease until {format_time(end_ms)}, for another {format_duration(left_ms)}.",
            "Wait until its consumer acks, nacks or releases it, or until the lease ends; no other consumer can get it before.",
        )
    explanation.add(f"Without an ack by then, {_after_lease(row, end_ms)}.")
    _explain_pause(
        snapshot, row, explanation, "Its topic is paused too: if it becomes ready again, it is not delivered"
    )


def _after_lease(row: Row, end_ms: int) -> str:
    """Say what happens when the lease ends. The conditions and their order are those of `life`."""
    if row.policy is DeliveryPolicy.AT_MOST_ONCE:
        return "it is deleted, because it is delivered at most once"
    if row.expires_at_ms is not None and row.expires_at_ms <= end_ms:
        return "it is deleted, because its TTL has ended by then"
    if row.attempts_max and row.attempt >= row.attempts_max:
        return f"it is dead, because that was the last of {counted(row.attempts_max, 'attempt')}"
    return "it is ready again at once"


def _explain_dead(snapshot: ItemSnapshot, row: Row, explanation: Reasons) -> None:
    explanation.add(
        f"It is dead, {dead_reason(row)}.",
        "Fix the cause, then have it delivered again: " + snapshot.cli_command("dead redrive", snapshot.id),
    )
    if row.due_ms is not None:
        explanation.add(
            f"It is kept until {format_time(row.due_ms)}, for another {format_duration(max(0, row.due_ms - snapshot.now_ms))}, then deleted."
        )
    _explain_pause(snapshot, row, explanation, "Its topic is paused too: once redriven, it is not delivered")


_STATES_WITH_TTL: Final = (State.DEFERRED, State.READY)
_EXPLAIN_STATE: Final = {
    State.DEFERRED: _explain_deferred,
    State.READY: _explain_ready,
    State.LEASED: _explain_leased,
    State.DEAD: _explain_dead,
}


# ------------------------------------------------------------ for every state


def _explain_pause(snapshot: ItemSnapshot, row: Row, explanation: Reasons, reason: str) -> None:
    if snapshot.is_paused:
        explanation.add(
            f"{reason} until the topic is resumed.", "Resume it: " + snapshot.cli_command("topic resume", row.topic)
        )


def _explain_ttl(snapshot: ItemSnapshot, row: Row, explanation: Reasons) -> None:
    expires_ms = row.expires_at_ms
    if expires_ms is not None and (row.state is State.READY or expires_ms > row.ready_at_ms):
        explanation.add(
            f"It is deleted if it is not delivered by {format_time(expires_ms)}, within {format_duration(expires_ms - snapshot.now_ms)}."
        )


def _explain_enqueues(snapshot: ItemSnapshot, explanation: Reasons) -> None:
    """Explain limits that affect new items only."""
    if snapshot.breaker != "closed":
        explanation.add(
            f"The breaker of its shard is {snapshot.breaker}, because its database fails or is slow: that stops new items "
            "only, not this one.",
        )
    if snapshot.rate_wait_ms:
        explanation.add(
            f"Its namespace has used up its enqueues of this minute, for another {format_duration(snapshot.rate_wait_ms)}: that "
            "stops new items only, not this one.",
        )


# --------------------------------------------------------------------- words


def format_time(ms: int) -> str:
    """Format a moment for people, in UTC."""
    return f"{datetime.fromtimestamp(ms // 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def format_duration(ms: int) -> str:
    """Format a duration for people, in its largest unit: `12.0 s`."""
    for unit, size in _UNITS:
        if ms >= size:
            return f"{ms / size:,.1f} {unit}"
    return f"{ms} ms"


def _format_attempt(row: Row) -> str:
    return f"{row.attempt} of {row.attempts_max}" if row.attempts_max else f"{row.attempt} (of no maximum)"
