"""The commands that list, show, pause, resume and purge topics, and set their policies.

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

GROUP_LEASES_MAX: Final = 1_000
"""The highest limit on the leases of a group that a host accepts."""
FAIRNESSES: Final = ("items", "time")
"""What the groups of a fair topic may share."""
ORDERS: Final = ("relaxed",)
"""The orders that a policy may name."""
WEIGHT_MAX: Final = 100
"""The highest weight of a group that a host accepts."""

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


_POLICIES: Final[list[Column]] = [
    ("TOPIC", lambda row: row["topic"]),
    ("GROUP_LEASES_MAX", lambda row: "-" if row["group_leases_max"] is None else str(row["group_leases_max"])),
    ("FAIR", lambda row: row["fair"] or "-"),
    ("WEIGHTS", lambda row: ", ".join(f"{group}={weight}" for group, weight in row["weights"].items()) or "-"),
    ("ORDER", lambda row: row["order"] or "-"),
]


@topic.command(
    "policy",
    epilog="\b\nExamples:\n  foqs topic policy orders --group-leases-max 1\n"
    "  foqs topic policy reports --fair items --weight Ada=3\n  foqs topic policy orders --remove",
)
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@click.option(
    "--group-leases-max",
    type=click.IntRange(1, GROUP_LEASES_MAX),
    help="How many items of one group may be leased at once; 1: strict order.",
)
@click.option(
    "--fair", type=click.Choice(FAIRNESSES), help="Groups take turns, by items or by the time of their leases."
)
@click.option(
    "--weight",
    "weights",
    multiple=True,
    metavar="GROUP=N",
    help=f"With --fair: the group gets N times as much as one of weight 1, at most {WEIGHT_MAX}. May be repeated.",
)
@click.option(
    "--order", type=click.Choice(ORDERS), help="A host delivers its own items though another host has better ones."
)
@click.option("--remove", is_flag=True, help="Remove the policy.")
@host_call_options
def topic_policy(
    session: HostSession,
    topics: Sequence[str],
    group_leases_max: int | None,
    fair: str | None,
    weights: Sequence[str],
    order: str | None,
    remove: bool,
) -> None:
    """Replace the policies of the topics: the most leases of a group, whether groups take turns, and the order over hosts.

    Items without a group have no limit, and each has a turn of its own. Leases that are held stay.
    """
    from foqs_client import TopicPolicy

    if remove == any(rule is not None for rule in (group_leases_max, fair, order)):
        raise click.UsageError("give some of --group-leases-max, --fair and --order, or else --remove")
    if weights and fair is None:
        raise click.UsageError("--weight needs --fair")
    by_group: dict[str, int] = {}
    for group, weight in map(_parse_weight, weights):
        if group in by_group:
            raise click.BadParameter(f"group {group!r} has two weights; give it one", param_hint="--weight")
        by_group[group] = weight

    async def work(client: Client) -> None:
        for name in topics:
            await client.set_topic_policy(TopicPolicy(name, group_leases_max, fair, by_group, order))
            sentences = [f"Removed the policy of {name}."] if remove else []
            if group_leases_max is not None:
                sentences.append(
                    f"At most {counted(group_leases_max, 'item')} of each group of {name} "
                    f"{'is' if group_leases_max == 1 else 'are'} leased at once."
                )
            if fair is not None:
                sentences.append(f"The groups of {name} take turns, by {fair}.")
            if order is not None:
                sentences.append(f"Each host delivers its own items of {name} though another host has better ones.")
            print_message(" ".join([*sentences, *pattern_notes([name])]))

    session.run(work)


def _parse_weight(text: str) -> tuple[str, int]:
    group, _, number = text.rpartition("=")
    if not group or not (number.isascii() and number.isdigit()) or not 1 <= int(number[:9]) <= WEIGHT_MAX:
        raise click.BadParameter(
            f"{text!r} is no weight; give GROUP=N with N from 1 to {WEIGHT_MAX}", param_hint="--weight"
        )
    return group, int(number)


@topic.command("policies", epilog="\b\nExamples:\n  foqs topic policies\n  foqs topic policies -n orders -o json")
@host_call_options
def topic_policies(session: HostSession) -> None:
    """List the topics that have a policy."""
    found = session.run(lambda client: client.topic_policies())
    show_rows([dataclasses.asdict(policy) for policy in found], _POLICIES, session.output_format)
    if not found:
        print_message(f"No topic of the namespace {session.namespace} has a policy.")


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
