"""A history as the records that `foqs spark measures` reads.

Holds `client_records` and `write_client_records`. An item is named by its id, so an item whose
enqueue ended unknown has no record of it. Each priority of a topic is a topic of its own, because
their order is not defined while items are enqueued and delivered at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.support.history import CallEnd, Event, entries, read


def client_records(events: Iterable[Event]) -> Iterator[Event]:
    """Yield the records of all enqueues, deliveries and acks that returned. Calls are numbered as they began."""
    topics: dict[str, str] = {}
    for number, call in enumerate(read(events).calls):
        if call.returned is None:
            continue
        times = {"at_ms": call.returned.at_ms, "took_ms": call.returned.at_ms - call.invoked.at_ms}
        done = [entry for entry in entries(call) if entry.end is CallEnd.OK]
        if call.op == "enqueue":
            for entry in done:
                item, topic = entry.result["id"], _topic(entry.requested)
                topics[item] = topic
                yield {"event": "enqueue", "topic": topic, "item": item, "sequence": number, **times}
        elif call.op == "dequeue":
            for place, delivery in enumerate(call.results):
                item, topic = delivery["id"], _topic(delivery)
                topics[item] = topic
                yield {"event": "delivery", "topic": topic, "item": item, "sequence": place, **times}
        elif call.op == "ack":
            for entry in done:
                item = entry.requested["id"]
                yield {"event": "ack", "topic": topics[item], "item": item, **times}


def _topic(item: Event) -> str:
    return f"{item['topic']}, priority {item['priority']}"


def write_client_records(events: Iterable[Event], path: Path) -> None:
    """Write the records of a history as JSON lines."""
    path.write_text("".join(f"{json.dumps(record)}\n" for record in client_records(events)))
