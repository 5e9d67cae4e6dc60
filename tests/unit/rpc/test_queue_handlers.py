"""The arguments of calls: which values pass, and which are refused with which field."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from foqs.core.items.item import TIME_MS_MAX, DeliveryPolicy, NewItem, State, parse_id
from foqs.core.items.life import EventKind
from foqs.queue.port import RowView
from foqs.rpc import reply_structs, request_structs
from foqs.rpc.call import ServerMethod
from foqs.rpc.in_host_calls import InHostCall
from foqs.rpc.messages import DecodeLimits, Decoder, bytes_spec, read_head
from foqs_contract.call_table import CALLS
from foqs_contract.errors import ErrorCode, FoqsError, InvalidArgument, LimitExceeded, NotImplementedYet, Overloaded
from foqs_contract.idl import Foqs, ttypes
from foqs_contract.key_slots import group_prefix
from tests.support.fake_queue import LIMITS, NOW_MS, FakeQueue
from tests.support.recorded_call import RecordedCall
from tests.support.rpc_server import call as call_frame
from tests.support.rpc_server import service_of
from tests.support.thrift_structs import read

ID = "3-8796093022209"


def ask(method: ServerMethod, request: Any) -> Any:
    """Return the reply struct for a decoded request, as a client reads it."""

    async def main() -> Any:
        return await InHostCall(method, request, 1e9).make()

    body = method.encode_reply(False, asyncio.run(main()))
    return read(getattr(Foqs, f"{method.row.name}_result"), body).success


def serve(queue: FakeQueue, name: str, request: Any) -> Any:
    """Return the reply struct for a request, encoded as a client sends it."""
    message = call_frame(name, request)[4:]
    head, _ = read_head(message)
    arguments = Decoder(DecodeLimits(1 << 24, 200_000)).decode(message, head, bytes_spec(getattr(Foqs, f"{name}_args")))
    handlers = service_of(queue)
    handlers.timeout_s(arguments.request)
    return ask(handlers.methods[name.encode()], arguments.request)


def test_an_atomic_call_has_ids_or_one_error_of_its_first_bad_item() -> None:
    queue = FakeQueue(replace(LIMITS, atomic_items_max=3, atomic_bytes_max=8))
    good = ttypes.NewItem("t", payload=b"abc")
    reply = serve(queue, "enqueue", ttypes.EnqueueRequest("default", [good, good], atomic=True))
    assert [result.error for result in reply.results] == [None, None]
    assert queue.atomic_calls == 1
    for items, code, field in (
        (
            [good, ttypes.NewItem("t", priority=1, attempts_max=-1), ttypes.NewItem()],
            "INVALID_ARGUMENT",
            "items[1].attempts_max",
        ),
        ([good] * 4, "LIMIT_EXCEEDED", "items"),
        ([good] * 3, "LIMIT_EXCEEDED", "items"),
        ([ttypes.NewItem("t", idempotency_key="k"), good], "INVALID_ARGUMENT", "items[1].idempotency_key"),
    ):
        assert refusal(queue, "enqueue", ttypes.EnqueueRequest("default", items, atomic=True)) == (code, field)
    assert len(serve(queue, "enqueue", ttypes.EnqueueRequest("default", [good] * 4, atomic=False)).results) == 4
    assert queue.atomic_calls == 1


def refusal(queue: FakeQueue, name: str, request: Any) -> tuple[str, str | None]:
    with pytest.raises(FoqsError) as caught:
        serve(queue, name, request)
    return caught.value.code, caught.value.field


def enqueue(**fields: Any) -> tuple[NewItem | None, Any]:
    """(the item as the queue saw it, its result) for one NewItem, beside a good neighbour."""
    queue = FakeQueue()
    fields.setdefault("topic", "t")
    request = ttypes.EnqueueRequest("default", [ttypes.NewItem(**fields), ttypes.NewItem(topic="neighbour")])
    results = serve(queue, "enqueue", request).results
    assert results[1].id is not None
    seen = queue.calls[0][1]
    assert isinstance(seen, list)
    return (seen[0] if len(seen) == 2 else None), results[0]


@pytest.mark.parametrize("topic", ["a", "A", "a ", " a", "é", "😀" * 63, "x" * 255, "a/b\nc"])
def test_a_name_is_kept_exactly(topic: str) -> None:
    item, result = enqueue(topic=topic)
    assert item is not None
    assert item.topic == topic
    assert result.id is not None


@pytest.mark.parametrize(
    ("fields", "code", "field"),
    [
        ({"idempotency_key": "é" * 128, "ttl_ms": 5}, ErrorCode.INVALID_ARGUMENT, "idempotency_key"),
        ({"key_until_ms": 5}, ErrorCode.INVALID_ARGUMENT, "key_until_ms"),
        ({"key_until_ms": -1, "idempotency_key": "k"}, ErrorCode.INVALID_ARGUMENT, "key_until_ms"),
        ({"trace_context": b"x" * 513, "ttl_ms": 5}, ErrorCode.INVALID_ARGUMENT, "trace_context"),
        ({"group": ""}, ErrorCode.INVALID_ARGUMENT, "group"),
        ({"group": "g" * 256, "ttl_ms": 5, "idempotency_key": "k"}, ErrorCode.INVALID_ARGUMENT, "group"),
        ({"group": "g\0"}, ErrorCode.INVALID_ARGUMENT, "group"),
        ({"group": "g", "idempotency_key": "k" * 238}, ErrorCode.INVALID_ARGUMENT, "idempotency_key"),
    ],
)
def test_bad_item_fails_alone_and_its_field_is_named(fields: dict[str, Any], code: ErrorCode, field: str) -> None:
    item, result = enqueue(**fields)
    assert item is None
    assert (ErrorCode(result.error.code), result.error.field) == (code, f"items[0].{field}")


def test_error_of_a_large_payload_states_the_limit() -> None:
    assert "10240" in enqueue(payload=b"x" * 10_241)[1].error.message


@pytest.mark.parametrize(
    ("fields", "seen"),
    [
        ({}, {"priority": 0, "payload": b"", "metadata": b"", "delay_ms": 0, "deliver_after_ms": None}),
        ({}, {"lease_ms": 30_000, "ttl_ms": None, "policy": DeliveryPolicy.AT_LEAST_ONCE, "attempts_max": 0}),
        ({"priority": -(1 << 31)}, {"priority": -(1 << 31)}),
        ({"priority": (1 << 31) - 1}, {"priority": (1 << 31) - 1}),
        ({"payload": b"x" * 10_240}, {"payload": b"x" * 10_240}),
        ({"deliver_after_ms": 5}, {"delay_ms": None, "deliver_after_ms": 5}),
        ({"deliver_after_ms": TIME_MS_MAX}, {"deliver_after_ms": TIME_MS_MAX}),
        ({"ttl_ms": 11, "delay_ms": 10}, {"ttl_ms": 11, "delay_ms": 10}),
        ({"lease_ms": 3_600_000}, {"lease_ms": 3_600_000}),
        ({"trace_context": b"\xff" * 512}, {"trace_context": b"\xff" * 512}),
        ({"trace_context": b"t", "idempotency_key": "k"}, {"trace_context": b"t"}),
        ({"trace_context": b"t", "ttl_ms": 5}, {"trace_context": b"t"}),
        ({"trace_context": b"t", "ttl_ms": 5, "idempotency_key": "k"}, {"trace_context": b"t"}),
        ({"trace_context": b""}, {"trace_context": None}),
        ({"key_until_ms": 5, "idempotency_key": "k"}, {"key_until_ms": 5, "trace_context": None}),
        ({"key_until_ms": 5, "ttl_ms": 5, "idempotency_key": "k", "deliver_after_ms": 1}, {"key_until_ms": 5}),
        ({"group": "é" * 127}, {"item_group": "é".encode() * 127, "trace_context": None, "delay_ms": 0}),
        ({"group": "g", "trace_context": b"t", "deliver_after_ms": 1, "ttl_ms": 5}, {"item_group": b"g", "ttl_ms": 5}),
        (
            {"group": "g", "idempotency_key": "k" * 237, "key_until_ms": 5},
            {"item_group": b"g", "idempotency_key": group_prefix(b"default", b"g") + b"k" * 237, "key_until_ms": 5},
        ),
        ({"idempotency_key": "k" * 255}, {"item_group": None, "idempotency_key": b"k" * 255}),
        ({"delivery_policy": 2, "attempts_max": 7}, {"policy": DeliveryPolicy.AT_MOST_ONCE, "attempts_max": 7}),
    ],
)
def test_a_good_item_reaches_the_queue_as_it_was_sent(fields: dict[str, Any], seen: dict[str, Any]) -> None:
    item, _ = enqueue(**fields)
    assert {name: getattr(item, name) for name in seen} == seen


def test_every_method_of_the_contract_is_there_and_one_without_a_handler_is_not_implemented() -> None:
    handlers = service_of(FakeQueue())
    assert {name.decode() for name in handlers.methods} == set(CALLS)
    with pytest.raises(NotImplementedYet, match="bindTopic is not served by this version"):
        ask(handlers.methods[b"bindTopic"], ttypes.BindTopicRequest("default", "t"))


def test_good_nack_beside_a_bad_one_reaches_the_queue() -> None:
    queue = FakeQueue()
    good = ttypes.Nack("3-8796093022210", 5, delay_ms=0, metadata=b"m")
    outcomes = serve(
        queue, "nack", ttypes.NackRequest("default", [ttypes.Nack(ID, 1, metadata=b"x" * 1_025), good])
    ).outcomes
    assert (ErrorCode(outcomes[0].error.code), outcomes[0].error.field) == (
        ErrorCode.LIMIT_EXCEEDED,
        "nacks[0].metadata",
    )
    assert ErrorCode(outcomes[1].error.code) is ErrorCode.NOT_FOUND
    [(_, details)] = queue.calls
    assert isinstance(details, list)
    [(shard, event)] = details
    assert (shard, event.kind, event.id, event.token) == (3, EventKind.NACK, 8796093022210, 5)
    assert (event.delay_ms, event.metadata, event.dead) == (0, b"m", False)
    assert 0 <= event.jitter < 1


def test_jitter_is_drawn_for_each_nack_from_the_generator_given() -> None:
    def events(seed: int) -> list[float]:
        queue = FakeQueue()
        handlers = service_of(queue, seed=seed)
        raw = [ttypes.Nack(b"3-%d" % (8796093022209 + n), 1) for n in range(3)]
        ask(handlers.methods[b"nack"], ttypes.NackRequest(b"default", raw))
        return [event.jitter for _, event in queue.calls[0][1]]  # type: ignore[attr-defined]

    assert events(1) == events(1)
    assert len(set(events(1))) == 3
    assert events(1) != events(2)


def test_good_acks_reach_the_queue_in_columns_and_bad_ones_do_not() -> None:
    one, two = 8796093022209, 8796093022210
    good = [ttypes.Lease(f"3-{one}", 5), ttypes.Lease(f"65535-{two}", -6)]
    for bad, field in [
        (None, None),
        (ttypes.Lease(None, 1), "id"),
        (ttypes.Lease("nonsense", 1), "id"),
        (ttypes.Lease("x" * 65, 1), "id"),
        (ttypes.Lease(f"4-{one}"), "token"),
        (ttypes.Lease(f"3-{one}", 7), "id"),
    ]:
        queue = FakeQueue()
        leases = good if bad is None else [good[0], bad, good[1]]
        outcomes = serve(queue, "ack", ttypes.AckRequest("default", leases)).outcomes
        assert queue.calls == [("ack", [((3, one), 5), ((65535, two), -6)])]
        assert [outcome.already_gone for outcome in outcomes if outcome.error is None] == [True, True]
        assert [outcome.error.field for outcome in outcomes if outcome.error] == (
            [f"leases[1].{field}"] if field else []
        )


def test_call_without_a_good_entry_is_answered_without_the_queue() -> None:
    queue = FakeQueue()
    bad = ttypes.Lease("nonsense", 1)
    assert len(serve(queue, "ack", ttypes.AckRequest("default", [bad, bad])).outcomes) == 2
    assert len(serve(queue, "release", ttypes.ReleaseRequest("default", [bad])).outcomes) == 1
    assert len(serve(queue, "enqueue", ttypes.EnqueueRequest("default", [ttypes.NewItem()])).results) == 1
    assert queue.calls == []


NUMBERS = st.one_of(
    st.integers(0, 1 << 64),
    st.sampled_from([8796093022207, 8796093022208, 8796093022209, (1 << 44), (1 << 63) - 1, 1 << 63]),
)


@example("3-08796093022209")
@example("03-8796093022209")
@example(f"3-{(1 << 63) + 1}")
@given(
    st.one_of(
        st.builds("{}-{}".format, st.one_of(st.integers(-1, 70_000), st.sampled_from([0, 65535, 65536])), NUMBERS),
        st.builds("{}{}".format, st.sampled_from(["0", "+", " ", "3-0", "3-+", "3- ", "3--", "-"]), NUMBERS),
        st.builds("3-{}{}".format, NUMBERS, st.sampled_from(["", " ", "\n", "-", "-1", "_1", "\u0661", "\0"])),
        st.text(max_size=30),
    )
)
def test_parse_ids_agrees_with_parse_id(text: str) -> None:
    try:
        expected = [(3, 8796093022209), parse_id(text, "id")]
    except FoqsError:
        expected = None
    assert request_structs.parse_ids([ID.encode(), text.encode(errors="surrogatepass")]) == expected


def test_each_item_of_a_mixed_call_keeps_its_own_topic_and_place() -> None:
    queue = FakeQueue()
    topics = ["a", "a", "", "b", None, "a", "é"]
    request = ttypes.EnqueueRequest("default", [ttypes.NewItem(topic=topic) for topic in topics])
    results = serve(queue, "enqueue", request).results
    assert [item.topic for item in queue.calls[0][1]] == ["a", "a", "b", "a", "é"]  # type: ignore[attr-defined]
    assert [result.error and result.error.field for result in results] == [
        None, None, "items[2].topic", None, "items[4].topic", None, None,
    ]  # fmt: skip
    assert [queue.rows[int(result.id[2:])].topic for result in results if result.id] == ["a", "a", "b", "a", "é"]


def test_an_item_that_the_queue_refuses_is_named_by_its_place_in_the_call() -> None:
    malformed, taken = InvalidArgument("it is empty", field="items[0].topic"), "1-8796093022209"
    refused, full = InvalidArgument("it ends too early", field="ttl_ms"), LimitExceeded("too many", field="items")
    reply = reply_structs.enqueue_reply([malformed, taken, refused, full, Overloaded("not now")]).results or ()
    assert [result.error and result.error.field for result in reply] == [
        "items[0].topic", None, "items[2].ttl_ms", "items", None,
    ]  # fmt: skip


def test_items_that_are_not_utf8_are_logged_once_per_call() -> None:
    raw = [ttypes.NewItem(topic=b"\xff"), ttypes.NewItem(topic=b"\xfe"), ttypes.NewItem(topic=b"")]
    handlers = service_of(FakeQueue())

    method = handlers.methods[b"enqueue"]
    call = RecordedCall("enqueue", ttypes.EnqueueRequest(b"default", raw), method=method)
    method.handle(call)
    assert len(call.replies[0].results) == 3
    [complaint] = call.complaints
    assert "items[0].topic" in complaint


def test_wait_is_limited_by_the_timeout_and_by_the_host() -> None:
    for timeout_ms, wait_ms, expected in [(500, 2_000, 500), (60_000, 10**12, LIMITS.wait_ms_max), (None, 50, 50)]:
        queue = FakeQueue()
        topics = [ttypes.TopicCount("a", 1)]
        serve(queue, "dequeue", ttypes.DequeueRequest("default", topics, wait_ms=wait_ms, timeout_ms=timeout_ms))
        assert queue.calls[0][1] == ([("a", 1)], expected, None)


def test_timeout_is_limited_by_the_host_and_has_a_default() -> None:
    handlers = service_of(FakeQueue())
    assert handlers.timeout_s(ttypes.AckRequest(timeout_ms=10**15)) == 60.0
    assert handlers.timeout_s(ttypes.AckRequest()) == 10.0
    assert handlers.timeout_s(ttypes.AckRequest(timeout_ms=1)) == 0.001


def test_item_view_has_only_the_fields_of_its_state() -> None:
    queue = FakeQueue()
    request = ttypes.EnqueueRequest("default", [ttypes.NewItem(topic="t", payload=b"abc", delay_ms=500, ttl_ms=900)])
    [result] = serve(queue, "enqueue", request).results
    view = serve(queue, "getItem", ttypes.GetItemRequest("default", result.id))
    assert (view.state, view.due_in_ms, view.lease_remaining_ms, view.ttl_remaining_ms) == (
        State.DEFERRED,
        500,
        None,
        900,
    )
    assert (view.payload, view.payload_bytes, view.dead_reason) == (None, 3, None)
    assert (view.first_delivery_age_ms, view.trace_context) == (None, None)
    assert serve(queue, "getItem", ttypes.GetItemRequest("default", result.id, True)).payload == b"abc"


def test_delivery_has_remaining_times_that_are_never_negative() -> None:
    queue = FakeQueue()
    serve(queue, "enqueue", ttypes.EnqueueRequest("default", [ttypes.NewItem(topic="t", payload=b"abc")]))
    request = ttypes.DequeueRequest("default", [ttypes.TopicCount("t", 1)], lease_ms=1_234)
    [item] = serve(queue, "dequeue", request).items
    assert (item.lease_remaining_ms, item.age_ms, item.attempt, item.payload) == (1_234, 0, 1, b"abc")
    row = next(iter(queue.rows.values()))
    assert item.first_delivery_age_ms == 0
    row.first_delivered_at_ms = NOW_MS + 5
    assert reply_structs.delivery_struct(RowView(3, row, NOW_MS)).first_delivery_age_ms == 0
    row.due_ms = NOW_MS - 5
    assert reply_structs.delivery_struct(RowView(3, row, NOW_MS)).lease_remaining_ms == 0


def test_shards_are_listed_by_number_in_pages() -> None:
    first = serve(FakeQueue(), "listShards", ttypes.ListRequest(ttypes.Page(1)))
    assert ([shard.shard for shard in first.shards], first.next_cursor) == ([3], "3")
    rest = serve(FakeQueue(), "listShards", ttypes.ListRequest(ttypes.Page(1, first.next_cursor)))
    assert ([(s.shard, s.state, s.reason) for s in rest.shards], rest.next_cursor) == (
        [(4, "acquiring", "waits")],
        None,
    )


def test_routing_reply_has_only_the_version_if_the_caller_has_it() -> None:
    full = serve(FakeQueue(), "getRouting", ttypes.GetRoutingRequest())
    assert (full.version, full.hosts[0].address.port, len(full.shards)) == (42, 7411, 2)
    short = serve(FakeQueue(), "getRouting", ttypes.GetRoutingRequest(42))
    assert (short.version, short.hosts, short.shards) == (42, None, None)


def test_an_error_carries_all_its_fields_to_the_wire() -> None:
    struct = reply_structs.error_struct(Overloaded("full", field="f", retry_after_ms=7, owner=("h", 1)))
    assert (struct.code, struct.message, struct.field, struct.retry_after_ms) == (7, "full", "f", 7)
    assert struct.owner == ttypes.HostAddress("h", 1)


def test_error_that_quotes_invalid_text_is_sent_escaped() -> None:
    struct = reply_structs.error_struct(Overloaded("a \ud800 ä", field="\udfff"))
    assert (struct.message, struct.field) == ("a \\ud800 ä", "\\udfff")


def test_the_codes_are_those_of_the_contract() -> None:
    assert {code.name: code.value for code in ErrorCode} == {code.name: code.value for code in ttypes.ErrorCode}


def test_explanation_has_the_item_if_it_exists_and_its_payload_on_request() -> None:
    queue = FakeQueue()
    result = serve(queue, "enqueue", ttypes.EnqueueRequest("default", [ttypes.NewItem("t", payload=b"p")])).results[0]
    reply = serve(queue, "explain", ttypes.GetItemRequest("default", result.id, True))
    assert (reply.item.id, reply.item.payload) == (result.id, b"p")
    assert (reply.reasons, reply.remedies) == (["First.", "Then."], ["Wait."])
    assert (reply.better_items, reply.better_items_more, reply.absent) == (7, True, None)
    assert serve(queue, "explain", ttypes.GetItemRequest("default", result.id)).item.payload is None
    gone = serve(queue, "explain", ttypes.GetItemRequest("default", ID.replace("09", "99")))
    assert (gone.item, gone.reasons, gone.better_items, gone.absent) == (None, ["It is gone."], None, True)


def test_get_item_returns_the_idempotency_key() -> None:
    queue = FakeQueue()
    result = serve(queue, "enqueue", ttypes.EnqueueRequest("default", [ttypes.NewItem("t")])).results[0]
    assert serve(queue, "getItem", ttypes.GetItemRequest("default", result.id)).idempotency_key == "kéy"
    assert serve(queue, "peek", ttypes.PeekRequest("default", "t")).items[0].idempotency_key is None
