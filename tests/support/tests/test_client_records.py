"""A history becomes the records of the pipeline `measures`."""

from __future__ import annotations

from tests.support.client_records import client_records
from tests.support.hand_written_history import HandWrittenHistory


def test_records_have_each_event_that_a_client_saw() -> None:
    history = (
        HandWrittenHistory()
        .enqueue(0, 10, priority=3)
        .enqueue(20, 25, id="0-2", error="RATE_LIMITED")
        .enqueue(30, None, id="0-3")
        .dequeue(40, 60, 1, priority=3)
        .dequeue(61, 70, failed="UNREACHABLE")
        .op("ack", 80, 85, 1)
        .op("ack", 90, 95, 1, error="STALE_LEASE")
        .present(100)
    )
    assert list(client_records(history.events())) == [
        {"event": "enqueue", "topic": "t, priority 3", "item": "0-1", "sequence": 0, "at_ms": 10, "took_ms": 10},
        {"event": "delivery", "topic": "t, priority 3", "item": "0-1", "sequence": 0, "at_ms": 60, "took_ms": 20},
        {"event": "ack", "topic": "t, priority 3", "item": "0-1", "at_ms": 85, "took_ms": 5},
    ]
