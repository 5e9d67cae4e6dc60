"""The command that explains why an item is not delivered.

Always true: it prints an answer for every well-formed id; the exit code says
whether the item exists. Knows no reasons: they come from the host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from foqs.cli.commands.item_commands import view_row
from foqs.cli.host_session import NOT_FOUND, OK, UNHEALTHY, HostSession, host_call_options
from foqs.cli.output import show_rows, write_data
from foqs.runtime.durations import format_duration
from foqs_contract.printable_text import printable

if TYPE_CHECKING:
    from foqs_client import Explanation


@click.command(
    epilog="\b\nExamples:\n  foqs explain 2-8796093022209\n  foqs explain 2-8796093022209 -n orders -o json\n"
    "\n\b\nExit codes: 4 there is no such item, 5 its shard is not served now.",
)
@click.argument("item_id", metavar="ITEM")
@host_call_options
def explain(session: HostSession, item_id: str) -> None:
    """Explain in words why an item is not delivered, and what would change it."""
    found = session.run(lambda client: client.explain(item_id))
    if session.output_format == "table":
        _print_explanation(item_id, found)
    else:
        show_rows([_explanation_row(item_id, found)], [], session.output_format)
    code = OK if found.item is not None else NOT_FOUND if found.absent else UNHEALTHY
    click.get_current_context().exit(code)


def _print_explanation(item_id: str, found: Explanation) -> None:
    item = found.item
    if item is not None:
        first_ms = item.first_delivery_age_ms
        first = "" if first_ms is None else f", first delivered {format_duration(first_ms)} ago"
        age = format_duration(item.age_ms)
        write_data(printable(f"{item.id} in {item.topic}: {item.state}, priority {item.priority}, {age} old{first}"))
    else:
        write_data(f"{printable(item_id)}: {'no such item' if found.absent else 'unknown'}")
    for title, sentences in (("Why", found.reasons), ("What would change it", found.remedies)):
        if sentences:
            write_data(f"\n{title}")
        for sentence in sentences:
            write_data(f"  - {printable(sentence)}")


def _explanation_row(item_id: str, found: Explanation) -> dict[str, Any]:
    return {
        "id": item_id,
        "absent": found.absent,
        "reasons": list(found.reasons),
        "remedies": list(found.remedies),
        "better_items": found.better_items,
        "better_items_more": found.better_items_more,
        "blockers": list(found.blockers),
        "group_items_before": found.group_items_before,
        "groups_before": found.groups_before,
        "item": None if found.item is None else view_row(found.item),
    }
