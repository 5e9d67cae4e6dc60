"""The commands of a consumer, and those that show items: dequeue, ack, nack, peek and item show.

Always true: a delivered item is shown before it is acked; items that could not be
shown are released, also if a signal ends the command. Knows nothing of how calls travel.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from foqs.cli.host_session import HostSession, errors_by_place, fail_on_errors, host_call_options, run_until_signal
from foqs.cli.output import (
    Column,
    Row,
    bytes_fields,
    outage_notes,
    pattern_notes,
    print_message,
    short_text,
    show_fields,
    show_rows,
)
from foqs.cli.values import DURATION, STATES, parse_leases, parse_topic_counts
from foqs.runtime.durations import format_duration

if TYPE_CHECKING:
    from foqs_client import Client, Delivery, Enqueued, ItemView, Outcome

PAGE_ITEMS: Final = 500
_WAIT_MARGIN_MS: Final = 5_000

_DELIVERY_COLUMNS: Final[list[Column]] = [
    ("ID", lambda row: row["id"]),
    ("TOKEN", lambda row: str(row["token"])),
    ("TOPIC", lambda row: row["topic"]),
    ("PRIORITY", lambda row: str(row["priority"])),
    ("ATTEMPT", lambda row: str(row["attempt"])),
    ("LEASE LEFT", lambda row: format_duration(row["lease_remaining_ms"])),
    ("AGE", lambda row: format_duration(row["age_ms"])),
    ("PAYLOAD", lambda row: short_text(row, "payload")),
]
_VIEW_COLUMNS: Final[list[Column]] = [
    ("ID", lambda row: row["id"]),
    ("TOPIC", lambda row: row["topic"]),
    ("STATE", lambda row: row["state"]),
    ("PRIORITY", lambda row: str(row["priority"])),
    ("ATTEMPT", lambda row: _attempts(row)),
    ("AGE", lambda row: format_duration(row["age_ms"])),
    ("FIRST DELIVERY", lambda row: _first_delivery(row)),
    ("NEXT", lambda row: _next_event(row)),
    ("BYTES", lambda row: str(row["payload_bytes"])),
    ("PAYLOAD", lambda row: short_text(row, "payload")),
]
_PAUSES_SHOWN: Final = 5
_OUTCOME_COLUMNS: Final[list[Column]] = [("ID", lambda row: row["id"]), ("OUTCOME", lambda row: row["outcome"])]
_MOVED_COLUMNS: Final[list[Column]] = [*_OUTCOME_COLUMNS, ("NEW ID", lambda row: row["new_id"] or "-")]


async def _pause_notes(client: Client, topics: Sequence[str]) -> list[str]:
    """Return a sentence for each paused topic that holds items."""
    pages = [await client.topics(topic, STATES, 1) for topic in topics]
    return [
        f"{topic} is paused; foqs topic resume {shlex.quote(topic)}"
        for topic, page in zip(topics, pages, strict=True)
        if any(found.topic == topic and found.paused for found in page.topics)
    ]


@click.command(
    epilog="\b\nExamples:\n  foqs dequeue mail\n  foqs dequeue mail=10 sms=5 --wait 30s -o jsonl\n  foqs dequeue mail --ack"
)
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC[=COUNT]...")
@click.option("--wait", type=DURATION, default="0", help="Wait this long for an item if there is none.")
@click.option("--lease", type=DURATION, default=None, help="The time to ack. Default: each item's own.")
@click.option(
    "--run-max", type=int, default=1, metavar="COUNT", help="The most items of a strict group, 1 to 100 (default 1)."
)
@click.option("--ack", is_flag=True, help="Ack the items after they were shown.")
@host_call_options
def dequeue(session: HostSession, topics: Sequence[str], wait: int, lease: int | None, run_max: int, ack: bool) -> None:
    """Dequeue the best items of each TOPIC, at most COUNT of each (default 1).

    The items are leased: ack them with the token shown, or they are delivered again.
    """
    wants = parse_topic_counts(topics)

    async def work(client: Client) -> list[Outcome]:
        timeout_ms = max(session.timeout_ms, wait + _WAIT_MARGIN_MS)
        deliveries = await client.dequeue(wants, wait_ms=wait, lease_ms=lease, run_max=run_max, timeout_ms=timeout_ms)
        try:
            show_rows([delivery_row(delivery) for delivery in deliveries], _DELIVERY_COLUMNS, session.output_format)
        except BaseException:
            await client.release(deliveries)
            raise
        if not deliveries:
            nothing = "Nothing is ready." if not wait else f"Nothing became ready within {format_duration(wait)}."
            print_message(
                " ".join(
                    [
                        nothing,
                        *outage_notes(deliveries.unavailable_shards, "there may be items"),
                        *pattern_notes(wants),
                        *await _pause_notes(client, list(wants)[:_PAUSES_SHOWN]),
                    ]
                )
            )
        elif ack:
            return list(await client.ack(deliveries))
        return []

    outcomes: list[Outcome] = session.run(work, run_until_signal)
    fail_on_errors(errors_by_place(outcomes), len(outcomes))


@click.command(
    epilog="\b\nExamples:\n  foqs ack 2-8796093022209 8796093022210\n  foqs ack 2-8796093022209:8796093022210 0-8796093022215:8796093022217"
)
@click.argument("leases", nargs=-1, required=True, metavar="ID TOKEN | ID:TOKEN...")
@host_call_options
def ack(session: HostSession, leases: Sequence[str]) -> None:
    """Ack items: they are done and are deleted."""
    pairs = parse_leases(leases)

    async def work(client: Client) -> list[Outcome]:
        return list(await client.ack(pairs))

    show_outcomes(session, [name for name, _ in pairs], session.run(work), "acked")


@click.command(
    epilog="\b\nExamples:\n  foqs nack 2-8796093022209 8796093022210 --delay 5s\n  foqs nack 2-8796093022209:8796093022210 --dead"
)
@click.argument("leases", nargs=-1, required=True, metavar="ID TOKEN | ID:TOKEN...")
@click.option("--delay", type=DURATION, default=None, help="Deliver again after this time; 0 is now. Default: backoff.")
@click.option("--dead", is_flag=True, help="The items are dead at once.")
@click.option("--metadata", default=None, help="Replaces the items' metadata.")
@host_call_options
def nack(session: HostSession, leases: Sequence[str], delay: int | None, dead: bool, metadata: str | None) -> None:
    """Nack items: they are not done, and are delivered again or, with --dead, are dead."""
    if dead and delay is not None:
        raise click.UsageError("Give --dead or --delay, not both: a dead item is not delivered again.")
    pairs = parse_leases(leases)

    async def work(client: Client) -> list[Outcome]:
        from foqs_client import Nack

        data = None if metadata is None else metadata.encode("utf-8", "surrogateescape")
        return list(
            await client.nack([Nack(name, token, delay_ms=delay, metadata=data, dead=dead) for name, token in pairs])
        )

    show_outcomes(session, [name for name, _ in pairs], session.run(work), "dead" if dead else "nacked")


@click.command(epilog="\b\nExamples:\n  foqs peek mail\n  foqs peek mail --state dead --payload -o json")
@click.argument("topic")
@click.option(
    "--state",
    type=click.Choice(["ready", "deferred", "leased", "dead"]),
    default="ready",
    show_default=True,
    help="Show items in this state.",
)
@click.option(
    "--limit", type=click.IntRange(1, 1_000_000), default=20, show_default=True, help="The most items to show."
)
@click.option("--payload", is_flag=True, help="Show payloads too.")
@host_call_options
def peek(session: HostSession, topic: str, state: str, limit: int, payload: bool) -> None:
    """Show a topic's items, best first, without leasing them."""

    async def work(client: Client) -> list[Row]:
        rows: list[Row] = []
        cursor: str | None = None
        while True:
            count = min(limit - len(rows), PAGE_ITEMS)
            page = await client.peek(topic, state=state, limit=count, cursor=cursor, with_payload=payload)
            rows += [view_row(view) for view in page.items]
            cursor = page.next_cursor
            if cursor is None or len(rows) >= limit:
                return rows

    rows = session.run(work)
    show_rows(rows, _VIEW_COLUMNS if payload else _VIEW_COLUMNS[:-1], session.output_format)
    if not rows:
        print_message(" ".join([f"No item of this topic is {state}.", *pattern_notes([topic])]))


@click.group()
def item() -> None:
    """Single items."""


@item.command("show", epilog="\b\nExample:\n  foqs item show 2-8796093022209 --payload")
@click.argument("item_id", metavar="ID")
@click.option("--payload", is_flag=True, help="Show the payload too.")
@host_call_options
def item_show(session: HostSession, item_id: str, payload: bool) -> None:
    """Show one item as it is now."""

    async def work(client: Client) -> ItemView:
        return await client.item(item_id, with_payload=payload)

    row = view_row(session.run(work))
    if session.output_format == "table":
        row = {name: value for name, value in row.items() if value is not None}
    show_fields(row, session.output_format)


@item.command("list", epilog="\b\nExamples:\n  foqs item list 0\n  foqs item list 3 --topic mail --state dead -o jsonl")
@click.argument("shard", type=click.IntRange(0, 65_535))
@click.option("--topic", "topics", multiple=True, help="Items of this topic; may be repeated.")
@click.option(
    "--state", "states", multiple=True, type=click.Choice(STATES), help="Items in this state; may be repeated."
)
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="Show at most this many items.")
@click.option("--payload", is_flag=True, help="Show the payloads too.")
@host_call_options
def item_list(
    session: HostSession, shard: int, topics: Sequence[str], states: Sequence[str], limit: int, payload: bool
) -> None:
    """List the items of SHARD by id, in every state. foqs cluster status shows the shards."""

    async def work(client: Client) -> list[Row]:
        from foqs_client import ItemFilter

        only = ItemFilter(topics=list(topics) or None, states=list(states) or None)
        rows: list[Row] = []
        cursor: str | None = None
        while True:
            count = min(limit - len(rows), PAGE_ITEMS)
            page = await client.list_items(shard, only, count, cursor, with_payload=payload, with_key=True)
            rows += [view_row(view) for view in page.items]
            cursor = page.next_cursor
            if cursor is None or len(rows) >= limit:
                return rows

    rows = session.run(work)
    show_rows(rows, _VIEW_COLUMNS if payload else _VIEW_COLUMNS[:-1], session.output_format)
    if not rows:
        print_message(" ".join(["No item of this shard matches.", *pattern_notes(topics)]))


def delivery_row(delivery: Delivery) -> dict[str, Any]:
    """Return the fields of a delivery as JSON shows them."""
    return {
        "id": delivery.id,
        "token": delivery.token,
        "topic": delivery.topic,
        "priority": delivery.priority,
        **bytes_fields("payload", delivery.payload),
        **bytes_fields("metadata", delivery.metadata),
        "attempt": delivery.attempt,
        "attempts_max": delivery.attempts_max,
        "lease_remaining_ms": delivery.lease_remaining_ms,
        "age_ms": delivery.age_ms,
        "first_delivery_age_ms": delivery.first_delivery_age_ms,
        **bytes_fields("trace_context", delivery.trace_context),
        "group": delivery.group,
    }


def view_row(view: ItemView) -> dict[str, Any]:
    """Return the fields of an item as JSON shows them."""
    names = (
        "id topic state priority at_most_once attempt attempts_max lease_ms age_ms due_in_ms lease_remaining_ms "
        "ttl_remaining_ms payload_bytes idempotency_key group dead_reason first_delivery_age_ms"
    )
    row: dict[str, Any] = {name: getattr(view, name) for name in names.split()}
    contents = {"payload": view.payload, "metadata": view.metadata, "trace_context": view.trace_context}
    for name, content in contents.items():
        row |= bytes_fields(name, content)
    return row


def _attempts(row: Row) -> str:
    return f"{row['attempt']}/{row['attempts_max']}" if row["attempts_max"] else str(row["attempt"])


def _first_delivery(row: Row) -> str:
    age_ms = row["first_delivery_age_ms"]
    return "-" if age_ms is None else f"{format_duration(age_ms)} ago"


def _next_event(row: Row) -> str:
    if row["lease_remaining_ms"] is not None:
        return f"lease ends in {format_duration(row['lease_remaining_ms'])}"
    if row["due_in_ms"] is not None:
        return f"due in {format_duration(row['due_in_ms'])}"
    return "-"


def show_outcomes(session: HostSession, ids: Sequence[str], outcomes: Sequence[Outcome], done: str) -> None:
    """Show the outcome of each id, `done` if it succeeded. Fail with the code of the first error."""
    rows = [
        {
            "id": name,
            "outcome": outcome.error.code if outcome.error else "already gone" if outcome.already_gone else done,
            "message": outcome.error.message if outcome.error else None,
        }
        for name, outcome in zip(ids, outcomes, strict=True)
    ]
    show_rows(rows, _OUTCOME_COLUMNS, session.output_format)
    fail_on_errors(errors_by_place(outcomes), len(outcomes))


def show_moved(session: HostSession, ids: Sequence[str], results: Sequence[Enqueued]) -> None:
    """Show the outcome and the new id of each moved item. Fail with the code of the first error."""
    rows = [
        {
            "id": name,
            "outcome": result.error.code if result.error else "moved before" if result.repeated else "moved",
            "new_id": result.id,
            "message": result.error.message if result.error else None,
        }
        for name, result in zip(ids, results, strict=True)
    ]
    show_rows(rows, _MOVED_COLUMNS, session.output_format)
    fail_on_errors(errors_by_place(results), len(results))
