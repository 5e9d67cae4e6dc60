"""The bytes of replies with many entries are those of Thrift's encoder."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.core.items.item import State
from foqs.options.rpc_options import RESULT_BYTES_MAX
from foqs.queue.port import CompletedIds, LeasedItems, RowView
from foqs.rpc import reply_structs
from foqs.rpc.messages import encode_struct
from foqs.rpc.reply_bytes import dequeue_result_bytes, enqueue_result_bytes
from foqs_contract.errors import FoqsError, NotOwner
from foqs_contract.idl import Foqs, ttypes
from tests.support.builders import row

SPEC = [Foqs.dequeue_result, Foqs.dequeue_result.thrift_spec]
I32 = st.integers(0, 2) | st.integers(0, (1 << 31) - 1)
MS = st.integers(0, 2) | st.integers(0, 1 << 60)
AVAILABILITY = (None, [ttypes.TopicAvailability("t", best_priority=-5)])


def view(
    shard: int, id: int, topic: str, priority: int, payload: bytes | None, metadata: bytes, token: int,
    attempt: int, attempts_max: int, enqueued_at_ms: int, now_ms: int, due_ms: int | None,
    first_delivered_at_ms: int | None = 4, trace_context: bytes | None = None,
    item_group: bytes | None = None,
) -> RowView:  # fmt: skip
    held = row(
        id, topic=topic, priority=priority, enqueued_at_ms=enqueued_at_ms, attempts_max=attempts_max, payload=payload,
        metadata=metadata, state=State.LEASED, due_ms=due_ms, token=token, attempt=attempt,
        first_delivered_at_ms=first_delivered_at_ms, trace_context=trace_context,
        item_group=item_group,
    )  # fmt: skip
    return RowView(shard, held, now_ms)


VIEWS = st.builds(
    view, shard=st.integers(0, 9_999), id=MS, topic=st.sampled_from(["t", "\xfc" * 9, "long" * 50]) | st.text(max_size=9),
    priority=st.integers(-1, 1) | st.integers(-(1 << 31), (1 << 31) - 1), payload=st.binary(max_size=300),
    metadata=st.sampled_from([b"", b"m"]) | st.binary(max_size=300), token=MS, attempt=I32, attempts_max=I32,
    enqueued_at_ms=MS, now_ms=MS, due_ms=st.none() | MS,
    first_delivered_at_ms=MS, trace_context=st.sampled_from([None, b"trace"]),
    item_group=st.sampled_from([None, b"g", "\xfc".encode()]),
)  # fmt: skip


def expected(
    items: Sequence[RowView], availability: Any, incarnation: int | None = None, *, is_compact: bool = False
) -> bytes:
    structs = [reply_structs.delivery_struct(item) for item in items]
    reply = ttypes.DequeueReply(structs, availability, incarnation=incarnation)
    return encode_struct(is_compact, Foqs.dequeue_result(reply), SPEC)


@given(st.lists(VIEWS, max_size=6), st.sampled_from(AVAILABILITY), st.none() | MS)
def test_deliveries_have_the_bytes_of_thrifts_encoder(
    items: list[RowView], availability: Any, incarnation: int | None
) -> None:
    assert dequeue_result_bytes(items, availability, incarnation) == expected(items, availability, incarnation)


@pytest.mark.parametrize("availability", AVAILABILITY, ids=["alone", "in a tier"])
@pytest.mark.parametrize("is_compact", [False, True], ids=["binary", "compact"])
def test_reply_is_the_same_in_both_ways(is_compact: bool, availability: Any) -> None:
    whole = view(3, 8, "t", 0, b"p", b"m", 1, 1, 9, 0, 5, 6)
    without_payload = view(3, 9, "t", 0, None, b"m", 1, 1, 9, 0, 5, 6)
    of_old_host = view(3, 9, "t", 0, b"p", b"m", 1, 1, 9, 0, 5, 6, None)
    for items in ([], [whole], [whole, without_payload], [whole, of_old_host]):
        reply = reply_structs.dequeue_reply(LeasedItems(items, lambda: None), 77)
        reply.availability = availability
        wanted = expected(items, availability, 77 if items else None, is_compact=is_compact)
        assert reply_structs.encode_dequeue_reply(is_compact, reply) == wanted
        structs = ttypes.DequeueReply([reply_structs.delivery_struct(item) for item in items], availability)
        assert reply_structs.encode_dequeue_reply(is_compact, structs) == expected(
            items, availability, is_compact=is_compact
        )


def test_time_left_by_the_real_clock_is_of_one_item_only() -> None:
    items = [view(shard, 8, "t", 0, b"p", b"m", 1, 1, 9, 0, 5, 600) for shard in (3, 4)]
    items[0].real_wait_ms = lambda due_ms: 10
    assert dequeue_result_bytes(items, None) == expected(items, None)


def test_number_out_of_range_is_an_error() -> None:
    with pytest.raises(struct.error):
        dequeue_result_bytes([view(3, 8, "t", 1 << 31, b"p", b"", 1, 1, 9, 0, 5, 6)], None)


@pytest.mark.parametrize("is_compact", [False, True], ids=["binary", "compact"])
@pytest.mark.parametrize("ids", [["3-17"], ["3-17", "3-18", "4-99"], ["3-17", "12-18"], ["3-17", "3-" + "8" * 19]])
def test_ids_have_the_bytes_of_thrifts_encoder(ids: list[str], is_compact: bool) -> None:
    structs = ttypes.EnqueueReply([ttypes.EnqueueResult(id) for id in ids])
    plain = encode_struct(
        is_compact, Foqs.enqueue_result(structs), [Foqs.enqueue_result, Foqs.enqueue_result.thrift_spec]
    )
    assert reply_structs.encode_enqueue_reply(is_compact, reply_structs.enqueue_reply(ids)) == plain
    assert reply_structs.encode_enqueue_reply(is_compact, structs) == plain
    assert (enqueue_result_bytes(ids) is None) == (len(set(map(len, ids))) > 1)


@pytest.mark.parametrize("text", ["x" * 100_000, "\N{SNOWMAN}" * 100_000, "\udcff" * 100_000])
def test_no_outcome_of_an_entry_is_longer_than_the_options_say(text: str) -> None:
    """So the reply of a call that has changed something is never too long to be sent."""
    error: FoqsError = NotOwner(text, field=text, retry_after_ms=1 << 60, owner=("h" * 253, 65_535))
    replies: list[tuple[Any, Any]] = [
        (reply_structs.enqueue_reply([error] * 100), Foqs.enqueue_result),
        (reply_structs.outcomes_reply([error] * 100), Foqs.ack_result),
        (reply_structs.move_items_reply([error] * 100), Foqs.moveItems_result),
        (reply_structs.complete_reply([error] * 100), Foqs.complete_result),
        (reply_structs.complete_reply([CompletedIds(["65535-" + "9" * 19] * 100, True)]), Foqs.complete_result),
    ]
    for reply, method in replies:
        assert len(encode_struct(False, method(reply), [method, method.thrift_spec])) <= 100 * RESULT_BYTES_MAX
    assert (reply_structs.error_struct(error).message or "").endswith("...")
