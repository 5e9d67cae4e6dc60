"""The commands that set and list the policies of topics.

Always true: a command that replaces a policy shows which rules it removes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from foqs.cli.host_session import HostSession, host_call_options
from foqs.cli.output import Column, Row, pattern_notes, print_message, show_rows
from foqs_contract.plurals import counted

if TYPE_CHECKING:
    from foqs_client import Client, TopicPolicy

GROUP_LEASES_MAX: Final = 1_000
"""The highest limit on the leases of a group that a host accepts."""
FAIRNESSES: Final = ("items", "time")
"""What the groups of a fair topic may share."""
ORDERS: Final = ("relaxed",)
"""The orders that a policy may name."""
WEIGHT_MAX: Final = 100
"""The highest weight of a group that a host accepts."""

_POLICIES: Final[list[Column]] = [
    ("TOPIC", lambda row: row["topic"]),
    ("GROUP_LEASES_MAX", lambda row: "-" if row["group_leases_max"] is None else str(row["group_leases_max"])),
    ("FAIR", lambda row: row["fair"] or "-"),
    ("WEIGHTS", lambda row: ", ".join(f"{group}={weight}" for group, weight in row["weights"].items()) or "-"),
    ("ORDER", lambda row: row["order"] or "-"),
]


@click.command(
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

    A policy is replaced as a whole, and the rules that this removes are shown. Items without a group have no limit, and each has a turn of its own. Leases that are held stay.
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

    rows: list[Row] = []

    async def work(client: Client) -> None:
        for name in topics:
            policy = TopicPolicy(name, group_leases_max, fair, by_group, order)
            # If somebody replaces the policy in between, the rules of that one are gone without a word here. It would be
            # the same right before the read, and the audit log has both calls.
            former = next((found for found in await client.topic_policies() if found.topic == name), TopicPolicy(name))
            await client.set_topic_policy(policy)
            rows.append(
                {
                    "topic": name,
                    "before": _rules(former),
                    "after": _rules(policy),
                    "removed": _removed_rules(former, policy),
                }
            )
            print_message(" ".join([*_sentences(policy), *_replaced(former, policy), *pattern_notes([name])]))

    try:
        session.run(work)
    finally:
        if session.output_format != "table":
            show_rows(rows, [], session.output_format)


def _rules(policy: TopicPolicy) -> dict[str, Any]:
    """Return the rules that the policy has, as in the lists of policies."""
    return {name: value for name, value in dataclasses.asdict(policy).items() if name != "topic" and value}


def _removed_rules(former: TopicPolicy, policy: TopicPolicy) -> dict[str, Any]:
    """Return the rules of the former policy that the new one does not have, also with another value."""
    present = _rules(policy)
    removed = {name: value for name, value in _rules(former).items() if name not in present}
    if gone := {group: weight for group, weight in former.weights.items() if group not in policy.weights}:
        removed["weights"] = gone
    return removed


def _sentences(policy: TopicPolicy) -> Iterator[str]:
    name = policy.topic
    if policy.group_leases_max is not None:
        yield (
            f"At most {counted(policy.group_leases_max, 'item')} of each group of {name} "
            f"{'is' if policy.group_leases_max == 1 else 'are'} leased at once."
        )
    if policy.fair is not None:
        yield f"The groups of {name} take turns, by {policy.fair}."
    if policy.order is not None:
        yield f"Each host delivers its own items of {name} though another host has better ones."


def _replaced(former: TopicPolicy, policy: TopicPolicy) -> Iterator[str]:
    """Yield a sentence about the rules that are gone, and one about those that have another value."""
    present, before = _words(policy), _words(former)
    removed = ", ".join(f"{rule} {words}" for rule, words in before.items() if rule not in present)
    if not present:
        name = policy.topic
        yield f"Removed the policy of {name}: {removed}." if removed else f"{name} had no policy."
    elif removed:
        yield f"Removed: {removed}."
    if changed := [
        f"{rule} from {words} to {present[rule]}"
        for rule, words in before.items()
        if rule in present and present[rule] != words
    ]:
        yield f"Changed: {', '.join(changed)}."


def _words(policy: TopicPolicy) -> dict[str, str]:
    """Return the values of the rules as words, each weight for itself."""
    words: dict[str, str] = {}
    if policy.group_leases_max is not None:
        words["group_leases_max"] = (
            f"{policy.group_leases_max}{' (strict order)' if policy.group_leases_max == 1 else ''}"
        )
    if policy.fair is not None:
        words["fair"] = policy.fair
    words |= {f"weight of {group}": str(weight) for group, weight in policy.weights.items()}
    if policy.order is not None:
        words["order"] = policy.order
    return words


def _parse_weight(text: str) -> tuple[str, int]:
    group, _, number = text.rpartition("=")
    if not group or not (number.isascii() and number.isdigit()) or not 1 <= int(number[:9]) <= WEIGHT_MAX:
        raise click.BadParameter(
            f"{text!r} is no weight; give GROUP=N with N from 1 to {WEIGHT_MAX}", param_hint="--weight"
        )
    return group, int(number)


@click.command("policies", epilog="\b\nExamples:\n  foqs topic policies\n  foqs topic policies -n orders -o json")
@host_call_options
def topic_policies(session: HostSession) -> None:
    """List the topics that have a policy."""
    found = session.run(lambda client: client.topic_policies())
    show_rows([dataclasses.asdict(policy) for policy in found], _POLICIES, session.output_format)
    if not found:
        print_message(f"No topic of the namespace {session.namespace} has a policy.")
