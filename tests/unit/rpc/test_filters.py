"""Changes, filters and bulk calls: which values pass, and which are refused with which field."""

from __future__ import annotations

from typing import Any

import pytest

from foqs.core.items.explanation import dead_reason
from foqs.core.items.item import State
from foqs.core.items.life import Event, EventKind
from foqs.core.items.row_filter import RowFilter
from foqs_contract.idl import ttypes
from tests.support.builders import row
from tests.support.fake_queue import FakeQueue
from tests.unit.rpc.test_queue_handlers import ID, serve

NUMBER = 8796093022209


def test_an_update_reaches_the_queue_for_each_good_id() -> None:
    queue = FakeQueue()
    change = ttypes.Change(priority=0, delay_ms=0, metadata=b"")
    outcomes = serve(queue, "update", ttypes.UpdateRequest("default", [ID, "nonsense", ID], change)).outcomes
    assert [outcome.error.field for outcome in outcomes] == [None, "ids[1]", "ids[2]"]
    event = Event(EventKind.UPDATE, NUMBER, "default", delay_ms=0, metadata=b"", priority=0)
    assert queue.calls == [("apply", [(3, event)])]


def test_a_redrive_reaches_the_queue_for_each_good_id() -> None:
    queue = FakeQueue()
    serve(queue, "redrive", ttypes.RedriveRequest("default", [ID]))
    assert queue.calls == [("apply", [(3, Event(EventKind.REDRIVE, NUMBER, "default"))])]


@pytest.mark.parametrize("lease_ms", [None, 1, 60_000])
def test_extension_without_a_token_reaches_the_queue_for_each_good_id(lease_ms: int | None) -> None:
    queue = FakeQueue()
    request = ttypes.ExtendHeldLeasesRequest("default", [ID, "nonsense", ID], lease_ms)
    outcomes = serve(queue, "extendHeldLeases", request).outcomes
    assert [outcome.error.field for outcome in outcomes[1:]] == ["ids[1]", "ids[2]"]
    assert queue.calls == [("apply", [(3, Event(EventKind.EXTEND, NUMBER, "default", token=None, lease_ms=lease_ms))])]


def test_a_filter_reaches_the_queue_as_it_was_given() -> None:
    queue = FakeQueue()
    raw = ttypes.ItemFilter("t", [4, 2, 2], -1, 5, 10, 20)
    serve(queue, "countItems", ttypes.CountItemsRequest("default", raw))
    serve(queue, "countItems", ttypes.CountItemsRequest("default", ttypes.ItemFilter()))
    serve(queue, "countItems", ttypes.CountItemsRequest("default", ttypes.ItemFilter(group="größe")))
    expected = RowFilter("t", (State.READY, State.DEAD), -1, 5, 10, 20)
    assert queue.calls == [
        ("count", expected),
        ("count", RowFilter()),
        ("count", RowFilter(group="größe".encode())),
    ]


@pytest.mark.parametrize(
    ("action", "change", "event", "only"),
    [
        (1, None, Event(EventKind.CANCEL, 0, "default"), RowFilter("t")),
        (2, ttypes.Change(5), Event(EventKind.UPDATE, 0, "default", priority=5), RowFilter("t")),
        (3, None, Event(EventKind.REDRIVE, 0, "default"), RowFilter("t", (State.DEAD,))),
    ],
)
def test_a_bulk_call_is_a_page_of_its_filter(action: int, change: Any, event: Event, only: RowFilter) -> None:
    queue = FakeQueue()
    request = ttypes.BulkRequest("default", ttypes.ItemFilter("t"), action, change, ttypes.Page(7, "here"))
    reply = serve(queue, "bulk", request)
    assert queue.calls == [("bulk", (event, only, "here", 7))]
    assert (reply.items, reply.next_cursor, reply.refused, reply.refusal) == (0, None, 0, None)


def test_dead_items_are_listed_with_their_reason() -> None:
    queue = FakeQueue()
    queue.rows[NUMBER] = row(NUMBER, state=State.DEAD, attempt=2, attempts_max=2)
    [view] = serve(queue, "listDead", ttypes.ListDeadRequest("default", "t")).items
    assert view.dead_reason == "attempts exhausted: delivered 2 of at most 2 times without an ack"
    assert view.payload is None
    assert queue.calls == [("matching", (RowFilter("t", (State.DEAD,)), None, 100, False))]
    [view] = serve(queue, "listDead", ttypes.ListDeadRequest("default", with_payload=True)).items
    assert view.payload == b"p"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"state": State.LEASED}, None),
        ({"attempt": 1}, "given up by its consumer in attempt 1"),
        ({"attempt": 1, "attempts_max": 3}, "given up by its consumer in attempt 1 of 3"),
        ({"attempt": 3, "attempts_max": 3}, "attempts exhausted: delivered 3 of at most 3 times without an ack"),
    ],
)
def test_dead_reason_comes_from_the_row(changes: dict[str, Any], reason: str | None) -> None:
    assert dead_reason(row(**({"state": State.DEAD} | changes))) == reason
