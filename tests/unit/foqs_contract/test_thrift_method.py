"""Calls are written and replies read by the contract, with or without Thrift structs."""

from __future__ import annotations

from typing import Any

import pytest

from foqs_client import Delivery, Item, conversion
from foqs_contract.idl import Foqs, ttypes
from foqs_contract.thrift_method import ThriftMethod, Unencodable, Unreadable
from tests.support.thrift_structs import ENQUEUE, written

DEQUEUE = ThriftMethod("dequeue", element_class=Delivery)
NACK = ThriftMethod("nack")


def test_request_that_does_not_match_the_contract_is_refused() -> None:
    for item in (Item("t", priority=1 << 31), Item("\ud800"), Item(5)):  # type: ignore[arg-type]
        items: list[Any] = conversion.items([item])
        with pytest.raises(Unencodable):
            ENQUEUE.encode(ttypes.EnqueueRequest("n", items))


def test_missing_field_of_a_delivery_has_its_default() -> None:
    full = ttypes.Delivery("3-1", 7, "t", -5, b"p", b"m", 2, 900, 11, 4)
    reply = ttypes.DequeueReply([full, ttypes.Delivery(id="3-2", token=8, topic="u")])
    found = DEQUEUE.decode(written(Foqs.dequeue_result(reply))).success.items
    assert found == [
        Delivery("3-1", 7, "t", -5, b"p", b"m", attempt=2, attempts_max=4, lease_remaining_ms=900, age_ms=11),
        Delivery("3-2", 8, "u"),
    ]
    assert len({*found, Delivery("3-2", 8, "u")}) == 2


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
