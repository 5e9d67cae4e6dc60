"""Tests the client's messages: written and read without Thrift structs, but by the contract."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from thrift.protocol.TBinaryProtocol import TBinaryProtocolAccelerated
from thrift.transport.TTransport import TMemoryBuffer

from foqs_client import Delivery, Enqueued, InvalidArgument, Item, Nack, conversion
from foqs_client.thrift_messages import ThriftMethod, Unencodable, Unreadable, all_done_count
from foqs_contract.idl import Foqs, ttypes

ENQUEUE = ThriftMethod("enqueue", is_write=True, element_class=Enqueued)
DEQUEUE = ThriftMethod("dequeue", is_write=True, element_class=Delivery)
NACK = ThriftMethod("nack", is_write=True)


def written(struct: Any) -> bytes:
    """Return the bytes that the generated code writes."""
    buffer = TMemoryBuffer()
    struct.write(TBinaryProtocolAccelerated(buffer, fallback=False))
    data: bytes = buffer.getvalue()
    return data


def read(kind: Any, data: bytes) -> Any:
    """Return the struct that the generated code reads."""
    struct = kind()
    struct.read(TBinaryProtocolAccelerated(TMemoryBuffer(data), fallback=False))
    return struct


def enqueued_items(*items: Item) -> Any:
    body = ENQUEUE.encode(ttypes.EnqueueRequest("n", conversion.items(items)))
    return read(ttypes.EnqueueRequest, body).items


def test_item_is_written_with_all_fields() -> None:
    item = Item("t", b"p", 5, b"m", 1, 2, 3, 4, True, 6, "k")
    assert enqueued_items(item) == [
        ttypes.NewItem(
            topic="t", payload=b"p", priority=5, metadata=b"m", delay_ms=1, deliver_after_ms=2, lease_ms=3, ttl_ms=4,
            delivery_policy=ttypes.DeliveryPolicy.AT_MOST_ONCE, attempts_max=6, idempotency_key="k",
        )
    ]  # fmt: skip
    assert enqueued_items(Item("t")) == [ttypes.NewItem(topic="t", payload=b"", priority=0, metadata=b"")]


def test_payload_that_is_not_bytes_is_converted_or_refused() -> None:
    data: Any
    for data in (bytearray(b"x"), memoryview(b"x")):
        [item] = enqueued_items(Item("t", data, metadata=data))
        assert (item.payload, item.metadata) == (b"x", b"x")
        [nack] = read(
            ttypes.NackRequest, NACK.encode(ttypes.NackRequest("n", conversion.nacks([Nack("3-1", 2, metadata=data)])))
        ).nacks
        assert nack == ttypes.Nack("3-1", 2, metadata=b"x", dead=False)
    for data in ("text", None, 5):
        with pytest.raises(InvalidArgument, match="payload"):
            conversion.items([Item("t", data)])
        with pytest.raises(InvalidArgument, match="metadata"):
            conversion.items([Item("t", metadata=data)])
    with pytest.raises(InvalidArgument, match="metadata"):
        conversion.nacks([Nack("3-1", 2, metadata="text")])  # type: ignore[arg-type]


def test_request_that_does_not_match_the_contract_is_refused() -> None:
    for item in (Item("t", priority=1 << 31), Item("\ud800"), Item(5)):  # type: ignore[arg-type]
        with pytest.raises(Unencodable):
            ENQUEUE.encode(ttypes.EnqueueRequest("n", conversion.items([item])))


def test_missing_field_of_a_delivery_has_its_default() -> None:
    full = ttypes.Delivery("3-1", 7, "t", -5, b"p", b"m", 2, 900, 11, 4)
    reply = ttypes.DequeueReply([full, ttypes.Delivery(id="3-2", token=8, topic="u")])
    found = DEQUEUE.decode(written(Foqs.dequeue_result(reply))).success.items
    assert found == [
        Delivery("3-1", 7, "t", -5, b"p", b"m", attempt=2, attempts_max=4, lease_remaining_ms=900, age_ms=11),
        Delivery("3-2", 8, "u"),
    ]
    assert len({*found, Delivery("3-2", 8, "u")}) == 2


def test_results_of_enqueue_are_read() -> None:
    results = [
        ttypes.EnqueueResult(id="3-1"),
        ttypes.EnqueueResult(id="3-2", repeated=True),
        ttypes.EnqueueResult(error=ttypes.Error(ttypes.ErrorCode.LIMIT_EXCEEDED, "much", "items[2]")),
        ttypes.EnqueueResult(),
    ]
    reply = ENQUEUE.decode(written(Foqs.enqueue_result(ttypes.EnqueueReply(results)))).success
    found = conversion.enqueued(reply.results)
    assert found[:2] == [Enqueued("3-1"), Enqueued("3-2", repeated=True)]
    assert [str(result.error) for result in found[2:]] == [
        "LIMIT_EXCEEDED (items[2]): much",
        "UNKNOWN_OUTCOME: the host's error is empty; the call may have taken effect",
    ]


OUTCOMES = st.one_of(
    st.just(ttypes.Outcome()),
    st.just(ttypes.Outcome(already_gone=True)),
    st.just(ttypes.Outcome(error=ttypes.Error(code=ttypes.ErrorCode.NOT_FOUND))),
)


@given(st.one_of(st.lists(OUTCOMES, max_size=5), st.integers(0, 700).map(lambda count: [ttypes.Outcome()] * count)))
def test_all_done_count_matches_exactly_the_replies_of_plain_successes(outcomes: list[Any]) -> None:
    body = written(Foqs.ack_result(ttypes.OutcomesReply(outcomes)))
    plain = all(outcome == ttypes.Outcome() for outcome in outcomes)
    assert all_done_count(body) == (len(outcomes) if plain else None)


def test_all_done_count_is_none_for_other_replies() -> None:
    done = written(Foqs.ack_result(ttypes.OutcomesReply([ttypes.Outcome()] * 3)))
    failed = written(Foqs.ack_result(failed=ttypes.CallFailed(ttypes.Error(code=1))))
    for body in (
        b"",
        b"\0",
        done[:-1],
        done + b"\0",
        done.replace(b"\3", b"\4"),
        done[:-3] + b"\1\0\0",
        failed,
        bytes(len(done)),
    ):
        assert all_done_count(body) is None


@pytest.mark.parametrize("size", range(12))
def test_truncated_reply_is_unreadable(size: int) -> None:
    body = written(Foqs.dequeue_result(ttypes.DequeueReply([])))
    assert len(body) > size
    with pytest.raises(Unreadable):
        DEQUEUE.decode(body[:size])


@pytest.mark.parametrize("count", [b"\0\0\1\0", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff"])
def test_decoder_allocates_no_more_elements_than_the_reply_has_bytes(count: bytes) -> None:
    with pytest.raises(Unreadable, match=r"limit|negative"):
        DEQUEUE.decode(b"\x0c\0\0\x0f\0\1\x0c" + count + b"\0\0")


def test_fields_of_a_later_contract_are_skipped() -> None:
    body = written(Foqs.dequeue_result(ttypes.DequeueReply([ttypes.Delivery("3-1", 7, "t")])))
    later = b"\x0b\0\x63\0\0\0\3new"
    assert body.endswith(b"t\0\0\0")
    assert DEQUEUE.decode(body[:-3] + later + body[-3:]).success.items == [Delivery("3-1", 7, "t")]
