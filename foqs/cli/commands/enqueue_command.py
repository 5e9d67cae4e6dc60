"""The command that enqueues items: one, several copies, or one for each line of standard input.

Always true: one batch of payloads is in memory at a time; after a failure the ids
that were committed before it are still shown.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import click

from foqs.cli.host_session import (
    CommandFailed,
    HostSession,
    errors_by_place,
    fail_on_errors,
    host_call_options,
    renamed_option,
)
from foqs.cli.output import Column, Row, print_message, show_rows
from foqs.cli.values import DURATION
from foqs_contract.plurals import counted

if TYPE_CHECKING:
    from foqs_client import Client, Enqueued, FoqsError

BATCH_ITEMS: Final = 500
BATCH_BYTES: Final = 4 << 20
LINE_BYTES_MAX: Final = 1 << 20

_COLUMNS: Final[list[Column]] = [
    ("ID", lambda row: row["id"] or "-"),
    ("OUTCOME", lambda row: row["outcome"]),
]


@click.command(
    epilog="\b\nExamples:\n  foqs enqueue mail 'hello'\n  foqs enqueue mail @letter.txt --priority -5 --delay 2m"
    "\n  seq 1000 | foqs enqueue numbers --lines"
)
@click.argument("topic")
@click.argument("payload", required=False, metavar="[PAYLOAD|-|@FILE]")
@click.option("--lines", is_flag=True, help="One item for each line of standard input, or of @FILE.")
@click.option(
    "--count", type=click.IntRange(1), default=1, show_default=True, help="The number of items with this payload."
)
@click.option(
    "--priority",
    type=click.IntRange(-(2**31), 2**31 - 1),
    default=0,
    show_default=True,
    help="Lower is delivered first.",
)
@click.option("--delay", type=DURATION, default=None, help="The item is not delivered before this time has passed.")
@click.option("--lease", type=DURATION, default=None, help="The consumer's time to ack. Default: the namespace's.")
@click.option(
    "--ttl", type=DURATION, default=None, help="The item expires if it is not acked within this time. Default: never."
)
@click.option(
    "--attempts",
    type=click.IntRange(0),
    default=None,
    help="The item is dead after this number of deliveries; 0: no limit. Default: the namespace's, which is no limit unless "
    "somebody has set one.",
)
@click.option("--at-most-once", is_flag=True, help="Never deliver an item twice.")
@click.option("--metadata", default=None, help="A short text beside the payload, which may change.")
@click.option("--trace-context", default=None, help="The trace to which the item belongs, such as a traceparent.")
@click.option(
    "--group", default=None, help="The group of the item, such as a customer. A key is unique within its group."
)
@click.option("--idempotency-key", default=None, help="The same key and item again return the first id.")
@click.option("--atomic", is_flag=True, help="Write all items or none. The host limits their number: 100 by default.")
@renamed_option("--key", "--idempotency-key")
@host_call_options
def enqueue(
    session: HostSession,
    topic: str,
    payload: str | None,
    lines: bool,
    count: int,
    idempotency_key: str | None,
    atomic: bool,
    **options: Any,
) -> None:
    """Add items to TOPIC. An item whose id is shown is committed.

    PAYLOAD is text, - for all of standard input, or @FILE for the bytes of a file; empty if omitted.

    Many items are sent in calls of at most 500 items and 4 MiB. A rate or a backlog that is full refuses a call as a
    whole; the error names the places of the refused items, from 1, in the order of the lines or copies. With --atomic
    all items are sent in one call.
    """
    if lines and count > 1:
        raise click.UsageError("Give --lines or --count, not both.")
    if idempotency_key is not None and (lines or count > 1):
        raise click.UsageError("--idempotency-key names one item; omit --lines and --count.")
    if lines and payload is not None and not (payload == "-" or payload.startswith("@")):
        raise click.UsageError("--lines reads standard input or @FILE; omit PAYLOAD, or write @FILE.")
    payloads = _read_lines(payload or "-") if lines else itertools.repeat(_read_payload(payload), count)
    settings = {
        "priority": options["priority"],
        "delay_ms": options["delay"],
        "lease_ms": options["lease"],
        "ttl_ms": options["ttl"],
        "attempts_max": options["attempts"],
        "at_most_once": options["at_most_once"],
        "metadata": (options["metadata"] or "").encode("utf-8", "surrogateescape"),
        "idempotency_key": idempotency_key,
        "group": options["group"],
        "trace_context": (options["trace_context"] or "").encode("utf-8", "surrogateescape") or None,
    }

    async def work(client: Client) -> tuple[dict[int, FoqsError], int]:
        return await _enqueue(client, session, topic, payloads, settings, atomic=atomic)

    fail_on_errors(*session.run(work))


async def _enqueue(
    client: Client,
    session: HostSession,
    topic: str,
    payloads: Iterable[bytes],
    settings: dict[str, Any],
    *,
    atomic: bool,
) -> tuple[dict[int, FoqsError], int]:
    """Enqueue the payloads and show the results. Return the errors by place, and the count of payloads."""
    from foqs_client import Item

    errors: dict[int, FoqsError] = {}
    total = 0
    rows: list[Row] = []
    streamed = session.output_format == "jsonl"
    try:
        for batch in [_only_batch(payloads)] if atomic else batches(payloads):
            items = [Item(topic=topic, payload=data, **settings) for data in batch]
            results = await client.enqueue(items, atomic=atomic)
            errors |= errors_by_place(results, total + 1)
            total += len(results)
            rows += [_result_row(result) for result in results]
            if streamed:
                show_rows(rows, _COLUMNS, "jsonl")
                rows.clear()
    finally:
        if not streamed:
            show_rows(
                _merge_equal_refusals(rows) if session.output_format == "table" else rows,
                _COLUMNS,
                session.output_format,
            )
    if not total:
        print_message("There was no line to enqueue.")
    return errors, total


def batches(payloads: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Yield batches of at most BATCH_ITEMS payloads and BATCH_BYTES, or of one larger payload."""
    batch: list[bytes] = []
    size = 0
    for data in payloads:
        if batch and (len(batch) >= BATCH_ITEMS or size + len(data) > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(data)
        size += len(data)
    if batch:
        yield batch


def _only_batch(payloads: Iterable[bytes]) -> list[bytes]:
    """Return all payloads. Raises CommandFailed if they are more than one batch."""
    first, *others = [*itertools.islice(batches(payloads), 2)] or [[]]
    if others:
        raise CommandFailed(
            f"These are more than {BATCH_ITEMS} items, or {BATCH_BYTES >> 20} MiB, too many for one atomic call; send fewer, or "
            "omit --atomic."
        )
    return first


def _result_row(result: Enqueued) -> Row:
    outcome = result.error.code if result.error else "repeated" if result.repeated else "enqueued"
    return {"id": result.id, "outcome": outcome, "message": result.error.message if result.error else None}


def _merge_equal_refusals(rows: Iterable[Row]) -> list[Row]:
    """Merge neighbouring rows with the same refusal into one row."""
    found: list[Row] = []
    for (name, outcome), group in itertools.groupby(rows, lambda row: (row["id"], row["outcome"])):
        count = len(list(group))
        found.append({"id": name, "outcome": outcome if count == 1 else f"{outcome}, {counted(count, 'item')}"})
    return found


def _read_payload(text: str | None) -> bytes:
    if text is None:
        return b""
    if text == "-" or text.startswith("@"):
        with _source(text) as stream:
            data = stream.read(LINE_BYTES_MAX + 1)
        if len(data) > LINE_BYTES_MAX:
            raise CommandFailed(
                f"The payload is longer than {LINE_BYTES_MAX} bytes, the most that a namespace can accept; give a shorter one."
            )
        return data
    return text.encode("utf-8", "surrogateescape")


def _read_lines(text: str) -> Iterator[bytes]:
    with _source(text) as stream:
        number = 0
        while line := stream.readline(LINE_BYTES_MAX + 2):
            number += 1
            data = line.removesuffix(b"\n").removesuffix(b"\r")
            if len(data) > LINE_BYTES_MAX:
                raise CommandFailed(
                    f"Line {number} is longer than {LINE_BYTES_MAX} bytes, the most that a namespace can accept; shorten it."
                )
            yield data


def _source(text: str) -> BinaryIO:
    if text == "-":
        if sys.stdin is None:
            raise CommandFailed(
                "Standard input is closed, so no payload can be read from it. Give PAYLOAD, or redirect the input."
            )
        return sys.stdin.buffer
    try:
        return Path(text[1:]).open("rb")
    except OSError as error:
        raise CommandFailed(
            f"{text[1:]} cannot be read: {error.strerror}. Name a file that this user may read."
        ) from None
