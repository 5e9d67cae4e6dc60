"""The client's types are converted to Thrift structs and back, also over a real connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.core.items.item import State
from foqs.core.items.life import Event, EventKind
from foqs.core.items.row_filter import RowFilter
from foqs_client import (
    BulkPage,
    Change,
    Client,
    Enqueued,
    InvalidArgument,
    Item,
    ItemCount,
    ItemFilter,
    Nack,
    NotFound,
    conversion,
)
from foqs_client.conversion import all_done_count
from foqs_contract.idl import Foqs, ttypes
from foqs_contract.thrift_method import ThriftMethod
from tests.support.aio import run
from tests.support.fake_queue import FakeQueue
from tests.support.rpc_server import serve_queue
from tests.support.thrift_structs import ENQUEUE, enqueued_items, read, written

NACK = ThriftMethod("nack")


def test_items_are_changed_and_redriven_by_id() -> None:
    async def main() -> None:
        queue = FakeQueue()
        async with serve_queue(queue) as host, Client(host.url) as client:
            [id_] = [result.require() for result in await client.enqueue([Item("t")])]
            number = int(id_.partition("-")[2])
            [done, missing] = await client.update([id_, "3-8796093099999"], Change(5, delay_ms=0, metadata=b"m"))
            done.require()
            with pytest.raises(NotFound):
                missing.require()
            [done] = await client.redrive([id_])
            done.require()
            events = [event for name, details in queue.calls if name == "apply" for _, event in cast(Any, details)]
            assert events[0] == Event(EventKind.UPDATE, number, "default", delay_ms=0, metadata=b"m", priority=5)
            assert events[2] == Event(EventKind.REDRIVE, number, "default")

    run(main())


def test_items_are_counted_and_changed_by_filter_page_by_page() -> None:
    async def main() -> None:
        queue = FakeQueue()
        async with serve_queue(queue) as host, Client(host.url) as client:
            await client.enqueue([Item("t", b"xy")] * 3)
            only = ItemFilter("t", ["ready", "dead"], 0, 9, age_min_ms=0)
            assert await client.count(only) == ItemCount(3, 6)
            assert await client.update_matching(only, Change(deliver_after_ms=7), 1) == BulkPage(1, 0, None, "more")
            assert await client.cancel_matching(only, cursor="more") == BulkPage(2, 0, None, None)
            await client.redrive_matching(ItemFilter())
            core = RowFilter("t", (State.READY, State.DEAD), 0, 9, 0)
            assert [details for name, details in queue.calls if name == "bulk"] == [
                (Event(EventKind.UPDATE, 0, "default", deliver_after_ms=7), core, None, 1),
                (Event(EventKind.CANCEL, 0, "default"), core, "more", 1_000),
                (Event(EventKind.REDRIVE, 0, "default"), RowFilter(states=(State.DEAD,)), None, 1_000),
            ]

    run(main())


def test_dead_items_are_listed() -> None:
    async def main() -> None:
        queue = FakeQueue()
        async with serve_queue(queue) as host, Client(host.url) as client:
            await client.enqueue([Item("t", b"one"), Item("u", b"two", attempts_max=4)])
            for row in queue.rows.values():
                row.state, row.attempt = State.DEAD, 4
            page = await client.dead(limit=1)
            assert [(view.state, view.payload, view.dead_reason) for view in page.items] == [
                ("dead", None, "given up by its consumer in attempt 4")
            ]
            assert page.next_cursor == "more"
            page = await client.dead("u", with_payload=True)
            assert [(view.topic, view.payload) for view in page.items] == [("u", b"two")]
            assert "attempts exhausted" in (page.items[0].dead_reason or "")

    run(main())


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.count(ItemFilter(states=["asleep"])),
        lambda client: client.update(["3-8796093022209"], Change()),
        lambda client: client.update(["3-8796093022209"], Change(metadata=cast(bytes, "text"))),
        lambda client: client.cancel_matching(ItemFilter(priority_min=2, priority_max=1)),
        lambda client: client.redrive_matching(ItemFilter(states=["ready"])),
    ],
)
def test_wrong_argument_is_refused(call: Callable[[Client], Any]) -> None:
    async def main() -> None:
        async with serve_queue(FakeQueue()) as host, Client(host.url) as client:
            with pytest.raises(InvalidArgument):
                await call(client)

    run(main())


def test_purge_returns_the_number_of_items() -> None:
    async def main() -> None:
        queue = FakeQueue()
        async with serve_queue(queue) as host, Client(host.url) as client:
            await client.enqueue([Item("t"), Item("t"), Item("u")])
            assert await client.purge_topic("t") == 2
            assert await client.purge_topic("t") == 0
            assert [details for name, details in queue.calls if name == "purge"] == ["t", "t"]

    run(main())


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
