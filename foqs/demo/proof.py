"""The proof: compares the ledger of the driving process with the contents of the host.

Always true: the host says whether an item is dead, the ledger whether it was acked; a
check that cannot be made fails. Knows nothing of how it is shown.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from foqs.demo.demo_producer import ATTEMPTS_MAX
from foqs.demo.ledger import RunLedger
from foqs_client import Client, ItemView, Topic
from foqs_contract.plurals import counted

ALL_STATES: Final = ("ready", "deferred", "leased", "dead")
PAGE: Final = 500
COUNT_S_MAX: Final = 20.0
"""How long the start waits until a host has counted the items of earlier runs."""
COUNT_POLL_S: Final = 0.1


@dataclass(slots=True, frozen=True)
class HostContents:
    """The items of a run that the host holds."""

    topics: list[Topic]
    dead: dict[str, ItemView]
    """Dead items by id."""


@dataclass(slots=True, frozen=True)
class Check:
    """The result of one check."""

    ok: bool
    sentence: str


async def topics_in(client: Client, prefix: str = "") -> list[Topic]:
    """Return all topics with this prefix, with items in any state. Raises FoqsError."""
    page = await client.topics(prefix=prefix, states=ALL_STATES, limit=PAGE)
    found = page.topics
    while page.next_cursor is not None:
        page = await client.topics(prefix=prefix, states=ALL_STATES, limit=PAGE, cursor=page.next_cursor)
        found += page.topics
    return found


async def counted_topics(client: Client) -> list[Topic]:
    """Return all topics once their items are counted, or those of a host that still counts after `COUNT_S_MAX`. Raises FoqsError."""
    found = await topics_in(client)
    for _ in range(round(COUNT_S_MAX / COUNT_POLL_S)):
        if not any(topic.counts_lag for topic in found):
            break
        await asyncio.sleep(COUNT_POLL_S)
        found = await topics_in(client)
    return found


def describe_earlier_items(topics: Sequence[Topic]) -> str:
    """Return the items by state and in how many topics they are; "" if there are none."""
    counts = {state: sum(getattr(topic, state) for topic in topics) for state in ALL_STATES}
    held = sum(any(getattr(topic, state) for state in ALL_STATES) for topic in topics)
    if not held:
        return ""
    at_least = "at least " if any(topic.counts_lag for topic in topics) else ""
    items = ", ".join(f"{count:,} {state}" for state, count in counts.items() if count)
    return f"{at_least}{items} in {counted(held, 'topic')}"


async def read_contents(client: Client, prefix: str) -> HostContents:
    """Read the host's contents of a run. Raises FoqsError."""
    topics = await topics_in(client, prefix)
    dead: dict[str, ItemView] = {}
    for topic in topics:
        cursor = None
        while topic.dead:
            page = await client.peek(topic.topic, "dead", PAGE, cursor)
            dead.update((item.id, item) for item in page.items)
            cursor = page.next_cursor
            if cursor is None:
                break
    return HostContents(topics, dead)


def check_run(ledger: RunLedger, left: HostContents) -> list[Check]:
    """Run all checks; the run is proven if all are ok."""
    entries, ids = ledger.entries, ledger.ids
    dead = {path for path, id in ids.items() if id in left.dead}
    acked = set(ledger.acks)
    lost = entries.keys() - acked - dead
    twice = {path for path, acks in ledger.acks.items() if acks > 1} | (acked & dead)
    mismatched = {path for path in acked if ledger.checksums[path] != entries[path].sha256}
    misnamed = {path for path, names in ledger.delivered_ids.items() if names != {ids.get(path)}}
    planted = {path for path, entry in entries.items() if entry.is_planted}
    escaped = {path for path in planted if path not in dead or left.dead[ids[path]].attempt != ATTEMPTS_MAX}
    waiting = {state: sum(getattr(topic, state) for topic in left.topics) for state in ALL_STATES[:3]}
    foreign_items = len(left.dead) - len(dead)
    return [
        Check(
            len(set(ids.values())) == len(entries) and not misnamed,
            f"{counted(len(ids), 'item')} enqueued, each with its own id, and delivered under it"
            + _exceptions(misnamed, "delivered under another id"),
        ),
        Check(
            not lost and not twice,
            f"each is accounted for exactly once: {len(acked):,} acked + {len(dead):,} dead = {len(acked | dead):,}"
            + _exceptions(lost, "lost")
            + _exceptions(twice, "settled twice"),
        ),
        Check(
            not mismatched,
            f"all {len(acked):,} checksums computed by the workers equal the producer's manifest"
            + _exceptions(mismatched, "that do not"),
        ),
        Check(
            not escaped,
            f"all {len(planted)} planted files are dead after {ATTEMPTS_MAX} attempts, and only then"
            + _exceptions(escaped, "not so"),
        ),
        Check(
            not any(waiting.values()) and foreign_items == ledger.foreign_items,
            "the host holds nothing else of this run: "
            + ", ".join(f"{count:,} {state}" for state, count in waiting.items())
            + (f" ({foreign_items:,} dead that others enqueued)" if foreign_items else ""),
        ),
    ]


def dead_reason(item: ItemView) -> str:
    """Return the reason from the metadata of the last nack."""
    try:
        return str(json.loads(item.metadata or b"")["reason"])
    except (ValueError, KeyError, TypeError):
        return item.dead_reason or "its leases ended without an ack"


def counts_by_topic(ledger: RunLedger) -> dict[str, Counter[str]]:
    """Return items, bytes and acked by topic."""
    counts: dict[str, Counter[str]] = {}
    for path, entry in ledger.entries.items():
        count = counts.setdefault(entry.topic, Counter())
        count["items"] += 1
        count["bytes"] += entry.size
        count["acked"] += ledger.acks[path]
    return counts


def _exceptions(paths: Sequence[str] | set[str], what: str) -> str:
    return f"; but {len(paths):,} {what}, such as {min(paths)!r}" if paths else ""
