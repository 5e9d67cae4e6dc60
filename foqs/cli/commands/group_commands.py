"""The command that lists the groups of a topic, and what holds each back.

Always true: it shows what hosts have in memory, and says so if that is not all. Knows no rules of groups.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from foqs.cli.host_session import HostSession, host_call_options
from foqs.cli.output import Column, Row, pattern_notes, print_message, show_rows
from foqs.cli.watch import run_watchable, watch_option
from foqs.runtime.durations import format_duration
from foqs_contract.plurals import counted

if TYPE_CHECKING:
    from foqs_client import Client, ListedGroups

GROUPS_SHOWN: Final = 20
GROUPS_MAX: Final = 1_000
"""The most groups that a host lists."""
STATES: Final = ("eligible", "leased", "backing-off", "unread", "idle")
"""The states of a group, as words of the command line."""
_BLOCKERS_SHOWN: Final = 3

_COLUMNS: Final[list[Column]] = [
    ("GROUP", lambda row: row["group"]),
    ("STATE", lambda row: row["state"].replace("_", "-")),
    ("READY", lambda row: f"{'≥' if row['ready_more'] else ''}{row['ready']}"),
    ("LEASED", lambda row: "-" if row["leased"] is None else str(row["leased"])),
    ("BEST", lambda row: "-" if row["priority"] is None else str(row["priority"])),
    ("OLDEST", lambda row: format_duration(row["oldest_ready_age_ms"])),
    ("HELD BACK BY", lambda row: _blockers(row)),
]
_TURN_COLUMNS: Final[list[Column]] = [
    ("BEFORE", lambda row: "-" if row["groups_before"] is None else str(row["groups_before"])),
    ("WEIGHT", lambda row: str(row["weight"])),
]
"""Only of a fair topic."""


@click.command(
    "groups",
    epilog="\b\nExamples:\n  foqs topic groups orders\n  foqs topic groups orders --by age --state leased --state backing-off\n"
    "  foqs topic groups orders --group Ada -o json",
)
@click.argument("name", metavar="TOPIC")
@click.option(
    "--by",
    "order",
    type=click.Choice(("size", "age")),
    default="size",
    show_default=True,
    help="First those with the most ready items, or those that have waited longest.",
)
@click.option(
    "--state", "states", multiple=True, type=click.Choice(STATES), help="Only groups in this state. May be repeated."
)
@click.option("--group", help="Only this group.")
@click.option(
    "--limit",
    type=click.IntRange(1, GROUPS_MAX),
    default=GROUPS_SHOWN,
    show_default=True,
    help="The most groups to show.",
)
@watch_option
@host_call_options
def topic_groups(
    session: HostSession,
    name: str,
    order: str,
    states: Sequence[str],
    group: str | None,
    limit: int,
    watch_ms: int | None,
) -> None:
    """List groups of a topic that has a policy, and the items that hold each back.

    READY counts the items that hosts have in memory (≥: there are more). BEST is the priority of the first one, and OLDEST how
    long it has waited. BEFORE, of a fair topic: how many groups of the host have their turn before.
    """
    chosen = [state.replace("-", "_") for state in states] or None

    async def work(client: Client) -> ListedGroups:
        return await client.groups(name, order, limit, states=chosen, group=group)

    def draw(session: HostSession, found: ListedGroups) -> None:
        columns = _COLUMNS + (_TURN_COLUMNS if found.fair is not None else [])
        show_rows([dataclasses.asdict(each) for each in found.groups], columns, session.output_format)
        for note in _notes(name, group, found):
            print_message(note)

    run_watchable(session, watch_ms, work, draw)


def _notes(name: str, group: str | None, found: ListedGroups) -> list[str]:
    """Return sentences about the list."""
    if found.group_leases_max is None and found.fair is None:
        how = f"foqs topic policy {shlex.quote(name)} --group-leases-max 1"
        return [
            f"The topic {name} has no policy for groups, so none is held back: {how}, for example, sets one.",
            *pattern_notes([name]),
        ]
    notes: list[str] = []
    if found.counts and group is None:
        states = [f"{groups} {state.replace('_', ' ')}" for state, groups in found.counts.items()]
        without = f"; {counted(found.ungrouped, 'ready item')} without a group" if found.ungrouped else ""
        notes.append(f"{counted(sum(found.counts.values()), 'group')} in memory: {', '.join(states)}{without}.")
    elif not found.counts:
        notes.append("This group is not in memory." if group is not None else "No group is in memory.")
    if found.partial:
        notes.append("Not all ready items are in memory: groups may be missing, and each may have more items.")
    if found.full:
        notes.append(
            "The memory of a shard is full of groups under delivery: others wait until some have ended "
            "(foqs_group_units, shard.ready_index_items_max)."
        )
    if found.paused:
        notes.append(f"The topic is paused: foqs topic resume {shlex.quote(name)}")
    return notes


def _blockers(row: Row) -> str:
    """Return the items that hold a group back, and how long a backoff still lasts."""
    blockers = row["blockers"]
    more = f" and {len(blockers) - _BLOCKERS_SHOWN} more" if len(blockers) > _BLOCKERS_SHOWN else ""
    wait = "" if row["resumes_in_ms"] is None else f", for {format_duration(row['resumes_in_ms'])}"
    return f"{', '.join(blockers[:_BLOCKERS_SHOWN])}{more}{wait}" if blockers else ""
