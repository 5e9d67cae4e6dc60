"""The client's types are converted to Thrift structs and back."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs_client import (
    Enqueued,
    InvalidArgument,
    Item,
    Nack,
    conversion,
)
from foqs_client.conversion import all_done_count
from foqs_contract.idl import Foqs, ttypes
from foqs_contract.thrift_method import ThriftMethod
from tests.support.thrift_structs import ENQUEUE, enqueued_items, read, written

NACK = ThriftMethod("nack")


def test_item_is_written_with_all_fields() -> None:
    item = Item("t", b"p", 5, b"m", 1, 2, 3, 4, True, 6, "k")
    assert enqueued_items(item) == [
        ttypes.NewItem(
            topic="t", payload=b"p", priority=5, metadata=b"m", delay_ms=1, deliver_after_ms=2, lease_ms=3, ttl_ms=4,
            delivery_policy=ttypes.DeliveryPolicy.AT_MOST_ONCE, attempts_max=6, idempotency_key="k",
        )
    ]  # fmt: skip
    assert enqueued_items(Item("t")) == [ttypes.NewItem(topic="t", payload=b"", priority=0, metadata=b"")]


def test_trace_context_that_is_not_bytes_is_converted_or_refused() -> None:
    [item] = conversion.items([Item("t", trace_context=cast(bytes, bytearray(b"00-ab")))])
    assert item.trace_context == b"00-ab"
    with pytest.raises(InvalidArgument) as caught:
        conversion.items([Item("t", trace_context=cast(bytes, "00-ab"))])
    assert caught.value.field == "trace_context"


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
        "UNKNOWN_OUTCOME: the host's error is empty; the call may have taken effect, so check before you repeat it",
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
