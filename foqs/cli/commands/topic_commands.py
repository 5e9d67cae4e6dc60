"""The commands that list, show, pause, resume and purge topics.

Always true: the list shows every matching topic, over all pages; a purge shows the
count and asks first.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from foqs.cli.host_session import ERROR, NOT_FOUND, CommandFailed, HostSession, host_call_options
from foqs.cli.output import Column, Row, confirm, outage_notes, pattern_notes, print_message, show_fields, show_rows
from foqs.cli.values import STATES
from foqs.cli.watch import run_watchable, watch_option
from foqs.runtime.durations import format_duration
from foqs_contract.plurals import counted

if TYPE_CHECKING:
    from foqs_client import Client

PAGE_TOPICS: Final = 500
INACTIVE_READ_MAX: Final = 1_000
"""The maximum number of topics among which those without a ready or leased item are counted."""

_UNAVAILABLE: Final = "topics may be missing, and items are not delivered"

_COLUMNS: Final[list[Column]] = [
    ("TOPIC", lambda row: row["topic"]),
    ("READY", lambda row: _format_count(row, "ready")),
    ("LEASED", lambda row: _format_count(row, "leased")),
    ("DEFERRED", lambda row: _format_count(row, "deferred")),
    ("DEAD", lambda row: _format_count(row, "dead")),
    ("BEST", lambda row: "-" if row["best_priority"] is None else str(row["best_priority"])),
    ("OLDEST", lambda row: format_duration(row["oldest_ready_age_ms"])),
    ("PAUSED", lambda row: "yes" if row["paused"] else ""),
]


@click.group()
def topic() -> None:
    """Topics: the queues."""


@topic.command(
    "list",
    epilog="\b\nExamples:\n  foqs topic list\n  foqs topic list --all --prefix mail. -o json\n  foqs topic list --watch 5s",
)
@click.option("--all", "everything", is_flag=True, help="Also topics with only deferred or dead items.")
@click.option("--prefix", default="", help="Only topics whose name has this prefix.")
@watch_option
@host_call_options
def topic_list(session: HostSession, everything: bool, prefix: str, watch_ms: int | None) -> None:
    """List the topics that have items, by name, with counts (~: there may be more).

    Any host of a cluster lists the topics of all hosts. The counts of other hosts are about a second old.
    BEST and OLDEST of a topic that nobody dequeues may be - in the first list after a restart, which reads them.
    """

    # A program that wants all topics uses --all.
    with_note = session.output_format == "table" and not everything

    async def work(client: Client) -> tuple[list[Row], int, str]:
        rows: list[Row] = []
        cursor: str | None = None
        while True:
            states = STATES if everything else None
            page = await client.topics(prefix=prefix, states=states, limit=PAGE_TOPICS, cursor=cursor)
            rows += [dataclasses.asdict(found) for found in page.topics]
            cursor = page.next_cursor
            if cursor is None:
                return rows, page.unavailable_shards, await _inactive_note(client, prefix) if with_note else ""

    def draw(session: HostSession, listed: tuple[list[Row], int, str]) -> None:
        rows, unavailable_shards, inactive_note = listed
        show_rows(rows, _COLUMNS, session.output_format)
        for note in outage_notes(unavailable_shards, _UNAVAILABLE):
            print_message(note)
        if not rows:
            print_message("No topic has items." if everything else "No topic has ready or leased items.")
        if inactive_note:
            print_message(inactive_note)

    run_watchable(session, watch_ms, work, draw)


async def _inactive_note(client: Client, prefix: str) -> str:
    """Return a sentence about the topics with only deferred or dead items; empty if there are none.

    It counts them among the first topics by name, so that a long list costs one call more.
    """
    page = await client.topics(prefix=prefix, states=STATES, limit=INACTIVE_READ_MAX)
    count = sum(not (found.ready or found.leased) and bool(found.deferred or found.dead) for found in page.topics)
    if not count:
        return ""
    at_least = "At least " if page.next_cursor else ""
    return f"{at_least}{count} {'topic has' if count == 1 else 'topics have'} only deferred or dead items; list them with --all."


@topic.command("show", epilog="\b\nExamples:\n  foqs topic show mail\n  foqs topic show mail -n orders -o json")
@click.argument("name", metavar="TOPIC")
@host_call_options
def topic_show(session: HostSession, name: str) -> None:
    """Show the counts of one topic."""

    async def work(client: Client) -> tuple[Row | None, int]:
        # By name, so the topic itself comes before those whose names begin with its own.
        page = await client.topics(prefix=name, states=STATES, limit=1)
        row = next((dataclasses.asdict(found) for found in page.topics if found.topic == name), None)
        return row, page.unavailable_shards

    row, unavailable_shards = session.run(work)
    notes = outage_notes(unavailable_shards, _UNAVAILABLE)
    if row is None:
        sentence = f"The topic {name} of the namespace {session.namespace} holds no item."
        raise CommandFailed(" ".join([sentence, *pattern_notes([name]), *notes]), ERROR if notes else NOT_FOUND)
    show_fields(row, session.output_format)
    for note in notes:
        print_message(note)


@topic.command("pause", epilog="\b\nExamples:\n  foqs topic pause mail\n  foqs topic pause mail sms -n orders")
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@host_call_options
def topic_pause(session: HostSession, topics: Sequence[str]) -> None:
    """Deliver nothing of the topics until they are resumed. Items can still be enqueued, acked and nacked."""

    async def work(client: Client) -> None:
        for name in topics:
            await client.pause_topic(name)
            for note in (
                f"Paused {name}. Resume it with: foqs topic resume {shlex.quote(name)}",
                *pattern_notes([name]),
            ):
                print_message(note)

    session.run(work)


@topic.command("resume", epilog="\b\nExample:\n  foqs topic resume mail")
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@host_call_options
def topic_resume(session: HostSession, topics: Sequence[str]) -> None:
    """Deliver paused topics again."""

    async def work(client: Client) -> None:
        for name in topics:
            await client.resume_topic(name)
            print_message(" ".join([f"Resumed {name}.", *pattern_notes([name])]))

    session.run(work)


_PURGED: Final[list[Column]] = [("TOPIC", lambda row: row["topic"]), ("PURGED", lambda row: str(row["purged"]))]


@topic.command("purge", epilog="\b\nExamples:\n  foqs topic purge mail\n  foqs topic purge mail sms --yes -o json")
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@click.option("--yes", is_flag=True, help="Do not ask.")
@host_call_options
def topic_purge(session: HostSession, topics: Sequence[str], yes: bool) -> None:
    """Delete all items of the topics, in every state: leased and dead ones too.

    Each topic is purged in one step. It is safe to interrupt this command and to repeat it.
    """
    from foqs_client import ItemFilter

    async def count(client: Client) -> dict[str, int]:
        return {name: (await client.count(ItemFilter(topic=name))).items for name in topics}

    if not yes:
        held = session.run(count)
        for name, items in held.items():
            print_message(
                " ".join([f"{name} holds {counted(items, 'item')}.", *([] if items else pattern_notes([name]))])
            )
        confirm(f"Delete {counted(sum(held.values()), 'item')}?")
    rows: list[Row] = []

    async def purge(client: Client) -> None:
        for name in dict.fromkeys(topics):
            rows.append({"topic": name, "purged": await client.purge_topic(name)})
            if len(topics) > 1:
                print_message(f"Purged {name}, {len(rows)} of {counted(len(topics), 'topic')}.")

    try:
        session.run(purge)
    except (CommandFailed, KeyboardInterrupt) as error:
        why, code = (str(error), error.code) if isinstance(error, CommandFailed) else ("Interrupted.", 1)
        left = list(dict.fromkeys(topics))[len(rows) :]
        rest = f" Not purged, or purged in part: {', '.join(left)}. Repeat the command for these only."
        raise CommandFailed(f"{why}{rest}" if len(topics) > 1 and left else why, code) from None
    finally:
        show_rows(rows, _PURGED, session.output_format)


def _format_count(row: Row, state: str) -> str:
    return f"{'~' if row['counts_lag'] else ''}{row[state]}"
