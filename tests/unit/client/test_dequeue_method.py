"""The deliveries of a reply are those that Thrift's decoder reads."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs_client import Delivery
from foqs_client.dequeue_method import DequeueMethod, _read_deliveries
from foqs_contract.idl import Foqs, ttypes
from foqs_contract.struct_bytes import ENTRIES_MIN
from foqs_contract.thrift_method import ThriftMethod, Unreadable
from tests.support.thrift_structs import written

METHOD = DequeueMethod()
PLAIN = ThriftMethod("dequeue", element_class=Delivery)
AVAILABILITY: tuple[Any, ...] = (None, [], [ttypes.TopicAvailability("t", best_priority=-5)])
I32 = st.integers(0, 2) | st.integers(-(1 << 31), (1 << 31) - 1)
I64 = st.integers(0, 2) | st.integers(-(1 << 63), (1 << 63) - 1)
RUNS = st.tuples(
    st.integers(1, 40),
    st.builds(
        ttypes.Delivery,
        id=st.sampled_from(["3-17", "12-8796093022209", "\xfc"]),
        token=I64,
        topic=st.sampled_from(["t", "u", "\xfc" * 9]) | st.text(max_size=9),
        priority=I32,
        payload=st.sampled_from([b"", b"\0" * 50]) | st.binary(max_size=50),
        metadata=st.sampled_from([b"", b"m"]) | st.binary(max_size=50),
        attempt=I32,
        lease_remaining_ms=I64,
        age_ms=I64,
        attempts_max=st.sampled_from([5] * 9 + [None]),
        first_delivery_age_ms=st.sampled_from([0] * 9 + [None]) | I64,
        trace_context=st.sampled_from([None] * 9 + [b"trace"]),
    ),
)
FLAWS = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255) | st.sampled_from([0, 1, 10, 11])), max_size=2)


def body_of(deliveries: list[Any], availability: Any = None, incarnation: int | None = None) -> bytes:
    return written(Foqs.dequeue_result(ttypes.DequeueReply(deliveries, availability, incarnation=incarnation)))


def decoded(method: ThriftMethod, body: bytes) -> Any:
    try:
        return method.decode(body)
    except Unreadable as error:
        return str(error)


def delivery(number: int, **changes: Any) -> Any:
    fields: dict[str, Any] = {
        "id": f"3-{8796093022209 + number}",
        "token": 7,
        "topic": f"t{number % 2}",
        "priority": number % 2,
    }
    fields |= {"payload": b"p%03d" % number, "metadata": b"", "attempt": 1, "lease_remaining_ms": 9}
    fields |= {"age_ms": number % 3, "attempts_max": 5, "first_delivery_age_ms": 0}
    return ttypes.Delivery(**(fields | changes))


@given(st.lists(RUNS, max_size=4), st.sampled_from(AVAILABILITY), FLAWS, st.sampled_from([0] * 9 + [1, 5, -1]))
def test_reply_is_read_as_thrift_reads_it(
    runs: list[tuple[int, Any]], availability: Any, flaws: list[tuple[int, int]], cut: int
) -> None:
    data = bytearray(body_of([one for count, one in runs for _ in range(count)], availability))
    for place, value in flaws:
        data[place % len(data)] = value
    body = bytes(data[: len(data) - cut] if cut >= 0 else data + bytes(-cut))
    plain = decoded(PLAIN, body)
    if not isinstance(plain, str) and plain.success is not None and plain.success.incarnation is not None:
        for one in plain.success.items or ():  # a flaw can be read as an incarnation
            one.incarnation = plain.success.incarnation
    assert decoded(METHOD, body) == plain


@pytest.mark.parametrize("count", [1, ENTRIES_MIN, 100])
def test_each_delivery_has_the_incarnation_of_the_reply(count: int) -> None:
    deliveries = [delivery(number) for number in range(count)]
    assert {one.incarnation for one in METHOD.decode(body_of(deliveries, incarnation=77)).success.items} == {77}
    assert {one.incarnation for one in METHOD.decode(body_of(deliveries)).success.items} == {0}


@pytest.mark.parametrize("availability", AVAILABILITY, ids=["alone", "empty", "in a tier"])
@pytest.mark.parametrize("count", [ENTRIES_MIN, 100])
def test_usual_reply_is_read_in_runs(count: int, availability: Any) -> None:
    body = body_of([delivery(number) for number in range(count)], availability)
    assert _read_deliveries(body, []) > 0
    found = METHOD.decode(body)
    assert found == PLAIN.decode(body)
    assert found.success.availability == availability
    assert all(type(one) is Delivery for one in found.success.items)


@pytest.mark.parametrize(
    "changes",
    [
        {"attempts_max": None}, {"payload": None}, {"topic": None}, {"token": None}, {"metadata": None}, {"id": None},
        {"payload": b"longer"}, {"id": "3-1"}, {"topic": "longer"}, {"metadata": b"m"},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("place", [0, 7, 50, 99])
def test_delivery_of_another_form_is_read_too(place: int, changes: dict[str, Any]) -> None:
    body = body_of([delivery(number, **(changes if number == place else {})) for number in range(100)])
    assert METHOD.decode(body) == PLAIN.decode(body)
