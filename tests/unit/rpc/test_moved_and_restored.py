"""Requests of moveItems, restoreItems and a bulk move are checked, and reach the queue as the core's types."""

from __future__ import annotations

from typing import Any

import pytest

from foqs.core.items.item import TIME_MS_MAX, DeliveryPolicy, State, parse_id
from foqs.core.items.item_with_history import ItemWithHistory
from foqs.core.items.life import Event, EventKind
from foqs.core.items.row_filter import RowFilter
from foqs.queue.port import Repeated
from foqs.rpc import reply_structs
from foqs_contract.errors import NotFound
from foqs_contract.idl import ttypes
from tests.support.fake_queue import FakeQueue
from tests.unit.rpc.test_queue_handlers import ID, refusal, serve

NUMBER = parse_id(ID, "id")[1]


def restore(**fields: Any) -> Any:
    return ttypes.RestoreItemsRequest("default", [ttypes.RestoredItem(**({"topic": "t"} | fields))])


def error_of(**fields: Any) -> tuple[str, str | None]:
    (result,) = serve(FakeQueue(), "restoreItems", restore(**fields)).results
    return ttypes.ErrorCode(result.error.code).name, result.error.field


def enqueued(queue: FakeQueue) -> Any:
    """Return the only item that reached the queue."""
    [(name, items)] = queue.calls
    assert name == "enqueue" and isinstance(items, list)
    (item,) = items
    return item


def test_move_reaches_the_queue_for_each_good_id() -> None:
    queue = FakeQueue()
    outcomes = serve(queue, "moveItems", ttypes.MoveItemsRequest("default", [ID, "nonsense", ID], "u")).outcomes
    assert [outcome.error.field for outcome in outcomes[1:]] == ["ids[1]", "ids[2]"]
    assert queue.calls == [("apply", [(3, Event(EventKind.MOVE, NUMBER, "default", topic="u"))])]


def test_ttl_of_a_move_has_a_limit_and_reaches_the_queue() -> None:
    queue = FakeQueue()
    endless = ttypes.MoveItemsRequest("default", [ID], "u", ttl_remaining_ms=TIME_MS_MAX + 1)
    assert refusal(queue, "moveItems", endless) == ("LIMIT_EXCEEDED", "ttl_remaining_ms")
    serve(queue, "moveItems", ttypes.MoveItemsRequest("default", [ID], "u", ttl_remaining_ms=9))
    assert queue.calls == [("apply", [(3, Event(EventKind.MOVE, NUMBER, "default", topic="u", ttl_remaining_ms=9))])]


def test_reply_of_a_move_has_new_ids_repeats_and_errors() -> None:
    new, repeated, failed = reply_structs.move_items_reply(["3-1", Repeated("3-2"), NotFound("gone")]).outcomes or ()
    assert (new.id, new.repeated, new.error) == ("3-1", None, None)
    assert (repeated.id, repeated.repeated, repeated.error) == ("3-2", True, None)
    assert failed.error is not None
    assert (failed.id, failed.error.code) == (None, ttypes.ErrorCode.NOT_FOUND)


def test_bulk_move_is_a_page_of_its_filter() -> None:
    queue = FakeQueue()
    request = ttypes.BulkRequest("default", ttypes.ItemFilter("t"), page=ttypes.Page(7, "here"), move_to="u")
    serve(queue, "bulk", request)
    assert queue.calls == [("bulk", (Event(EventKind.MOVE, 0, "default", topic="u"), RowFilter("t"), "here", 7))]


@pytest.mark.parametrize(
    ("topic", "action", "target", "field"),
    [
        ("t", None, None, "action"),
        ("t", 4, None, "action"),
        ("t", None, "", "move_to"),
        ("t", None, "t", "move_to"),
        (None, None, "u", "filter.topic"),
        ("t", 1, "u", "action"),
        ("t", 3, "u", "action"),
    ],
)
def test_bad_bulk_move_fails(topic: str | None, action: int | None, target: str | None, field: str) -> None:
    queue = FakeQueue()
    request = ttypes.BulkRequest("default", ttypes.ItemFilter(topic), action, move_to=target)
    assert refusal(queue, "bulk", request) == ("INVALID_ARGUMENT", field)
    assert queue.calls == []


def test_restored_item_reaches_the_queue_with_its_history() -> None:
    queue = FakeQueue()
    serve(
        queue,
        "restoreItems",
        restore(
            priority=-3,
            payload=b"work",
            metadata=b"note",
            deliver_after_ms=-5,
            lease_ms=7,
            ttl_ms=900,
            ttl_remaining_ms=300,
            delivery_policy=2,
            attempts_max=4,
            attempt=2,
            state=3,
            idempotency_key="own",
            trace_context=b"trace",
        ),
    )
    item = enqueued(queue)
    assert isinstance(item, ItemWithHistory)
    assert (item.topic, item.priority, item.payload, item.metadata) == ("t", -3, b"work", b"note")
    assert (item.deliver_after_ms, item.lease_ms, item.ttl_ms, item.ttl_remaining_ms) == (-5, 7, 900, 300)
    assert (item.policy, item.attempts_max, item.attempt) == (DeliveryPolicy.AT_MOST_ONCE, 4, 2)
    assert (item.state, item.idempotency_key, item.trace_context) == (State.LEASED, b"own", b"trace")


def test_restored_item_without_values_has_the_defaults_and_a_reserved_key() -> None:
    queue = FakeQueue()
    serve(queue, "restoreItems", restore(restore_key="run-1", ttl_ms=900))
    item = enqueued(queue)
    assert item.idempotency_key == b"\0restore run-1"
    assert (item.state, item.attempt, item.deliver_after_ms, item.ttl_remaining_ms) == (State.READY, 0, None, 900)


@pytest.mark.parametrize(
    ("fields", "code", "field"),
    [
        ({"ttl_ms": 5, "ttl_remaining_ms": 6}, "LIMIT_EXCEEDED", "ttl_remaining_ms"),
        ({"restore_key": None}, "INVALID_ARGUMENT", "restore_key"),
        ({"idempotency_key": "k"}, "INVALID_ARGUMENT", "restore_key"),
        ({"idempotency_key": "\0restore k", "restore_key": None}, "INVALID_ARGUMENT", "idempotency_key"),
    ],
)
def test_bad_restored_item_fails_alone(fields: dict[str, Any], code: str, field: str) -> None:
    assert error_of(**({"restore_key": "1"} | fields)) == (code, f"items[0].{field}")
