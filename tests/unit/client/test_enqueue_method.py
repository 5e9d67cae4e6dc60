"""The bytes and the errors of an enqueue are those of Thrift's encoder."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs_client import Enqueued, Item
from foqs_client.enqueue_method import EnqueueMethod, _joined_parts
from foqs_contract.contract_version import ADDED_FIELDS, NewerPart
from foqs_contract.idl import ttypes
from foqs_contract.thrift_method import Unencodable
from tests.support.thrift_structs import ENQUEUE as PLAIN

JOINED = EnqueueMethod("enqueue", element_class=Enqueued)
TEXTS = st.text(max_size=300)
NUMBERS = st.none() | st.integers(-(1 << 31), (1 << 31) - 1)
USUAL_ITEMS = st.builds(
    Item,
    topic=TEXTS,
    payload=st.binary(max_size=300),
    priority=st.integers(-(1 << 31), (1 << 31) - 1),
    metadata=st.binary(max_size=300),
    idempotency_key=st.none() | TEXTS,
    trace_context=st.none() | st.binary(max_size=60),
    key_until_ms=st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
    group=st.none() | TEXTS,
)
OTHER_ITEMS = st.builds(
    Item,
    topic=TEXTS,
    delay_ms=NUMBERS,
    deliver_after_ms=NUMBERS,
    lease_ms=NUMBERS,
    ttl_ms=NUMBERS,
    at_most_once=st.booleans(),
    attempts_max=NUMBERS,
    trace_context=st.none() | st.binary(max_size=9),
    key_until_ms=NUMBERS,
    group=st.none() | TEXTS,
)
BAD_ITEMS: tuple[Any, ...] = (
    Item(5),  # type: ignore[arg-type]
    Item(None),  # type: ignore[arg-type]
    Item(b"t"),  # type: ignore[arg-type]
    Item("\ud800"),
    Item("t", 5),  # type: ignore[arg-type]
    Item("t", bytearray(b"p")),  # type: ignore[arg-type]
    Item("t", None),  # type: ignore[arg-type]
    Item("t", priority=1 << 31),
    Item("t", priority=-(1 << 31) - 1),
    Item("t", priority=1.0),  # type: ignore[arg-type]
    Item("t", priority=None),  # type: ignore[arg-type]
    Item("t", priority=True),
    Item("t", metadata="m"),  # type: ignore[arg-type]
    Item("t", idempotency_key="\ud800"),
    Item("t", idempotency_key=b"k"),  # type: ignore[arg-type]
    Item("t", idempotency_key=5),  # type: ignore[arg-type]
    Item("t", trace_context="t"),  # type: ignore[arg-type]
    Item("t", group="\ud800"),
    Item("t", group=b"g"),  # type: ignore[arg-type]
    Item("t", key_until_ms="1"),  # type: ignore[arg-type]
    Item("t", key_until_ms=1 << 63),
    Item("t", at_most_once=1),  # type: ignore[arg-type]
    Item("t", at_most_once=0),  # type: ignore[arg-type]
    Item("t", delay_ms="1"),  # type: ignore[arg-type]
    None,
    "t",
    Enqueued("3-1"),
    ttypes.NewItem("t", payload=b"p"),
)


def request(
    items: Any,
    namespace: Any = "n",
    timeout_ms: Any = 1_000,
    forwarded: bool | None = None,
    atomic: bool | None = None,
) -> Any:
    return ttypes.EnqueueRequest(namespace, items, timeout_ms, forwarded, atomic)


def encoded(method: Any, wanted: Any) -> Any:
    try:
        return method.encode(wanted)
    except Unencodable as error:
        return str(error)


@given(st.lists(USUAL_ITEMS, max_size=5), TEXTS, st.integers(-(1 << 63), (1 << 63) - 1))
def test_usual_items_have_the_bytes_of_thrifts_encoder(items: list[Item], namespace: str, timeout_ms: int) -> None:
    wanted = request(items, namespace, timeout_ms)
    assert _joined_parts(wanted) is not None
    assert JOINED.encode(wanted) == PLAIN.encode(wanted)


@given(st.lists(USUAL_ITEMS | OTHER_ITEMS, max_size=5), st.none() | st.booleans(), st.none() | st.booleans())
def test_other_items_have_the_bytes_of_thrifts_encoder(
    items: list[Item], forwarded: bool | None, atomic: bool | None
) -> None:
    wanted = request(items, forwarded=forwarded, atomic=atomic)
    assert JOINED.encode(wanted) == PLAIN.encode(wanted)


@pytest.mark.parametrize("item", BAD_ITEMS, ids=repr)
def test_bad_item_ends_as_with_thrifts_encoder(item: Any) -> None:
    for items in ([item], [Item("t", b"p"), item], [item, Item("t", b"p")]):
        assert encoded(JOINED, request(items)) == encoded(PLAIN, request(items))


@pytest.mark.parametrize("wanted", [
    request(None), request(5), request(()), request([], None), request([], "\ud800"), request([], b"n"),
    request([], 5), request([], timeout_ms=None), request([], timeout_ms=1 << 63), request([], timeout_ms=1.5),
], ids=repr)  # fmt: skip
def test_bad_request_ends_as_with_thrifts_encoder(wanted: Any) -> None:
    assert encoded(JOINED, wanted) == encoded(PLAIN, wanted)


def test_every_field_of_a_newer_version_is_found_among_usual_items() -> None:
    usual: Any = Item("t", b"x", idempotency_key="k")
    assert JOINED.newest_part(ttypes.EnqueueRequest("n", [usual] * 3)) is None
    for field, version in ADDED_FIELDS[ttypes.EnqueueRequest].items():
        of_call: dict[str, Any] = {field: True}
        assert JOINED.newest_part(ttypes.EnqueueRequest("n", [usual], **of_call)) == NewerPart(version, field)
    for field, version in ADDED_FIELDS[ttypes.NewItem].items():
        added: dict[str, Any] = {field: b"x"}
        newer: Any = ttypes.NewItem("t", **added)
        request = ttypes.EnqueueRequest("n", [usual, newer, usual])
        assert JOINED.newest_part(request) == NewerPart(version, f"items[1].{field}")
        if field in {each.name for each in fields(Item)}:
            newer = Item("t", **added)
            request = ttypes.EnqueueRequest("n", [usual, newer])
            assert JOINED.newest_part(request) == NewerPart(version, f"items[1].{field}")
