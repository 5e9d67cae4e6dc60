"""Items that pass for messages of SQS are refused from producers and consumers, and from nobody else."""

from __future__ import annotations

from typing import Any

import pytest

from foqs.rpc.methods import contract_methods
from foqs.rpc.request_bytes import UsualItems
from foqs.sqs import envelope, origin
from foqs_contract.errors import PermissionDenied
from foqs_contract.idl import ttypes
from tests.support.requests import Names, good

MESSAGE = envelope.encode(envelope.Message("pay", sender="boss"))
ORIGIN = origin.encode(origin.Origin("dead", "mail", "id", 3, 7))
METHODS = contract_methods({})


def check(name: str, request: Any) -> None:
    """Check the request of a principal that is no administrator. Raises PermissionDenied."""
    METHODS[name.encode()].check(request)


def items(*contents: tuple[bytes | None, bytes | None]) -> Any:
    return [ttypes.NewItem(b"mail", payload=payload, metadata=metadata) for payload, metadata in contents]


def usual(*contents: tuple[bytes, bytes]) -> Any:
    return UsualItems([(b"mail", 0, payload, metadata, None) for payload, metadata in contents], None)


@pytest.mark.parametrize("make", [items, usual])
@pytest.mark.parametrize(
    ("content", "field"), [((MESSAGE, b""), "items[1].payload"), ((b"x", ORIGIN), "items[1].metadata")]
)
def test_item_that_names_a_sender_or_an_origin_is_refused(make: Any, content: tuple[bytes, bytes], field: str) -> None:
    with pytest.raises(PermissionDenied) as caught:
        check("enqueue", ttypes.EnqueueRequest(b"n", make((b"x", b"y"), content)))
    assert caught.value.field == field


@pytest.mark.parametrize("name", ["enqueue", "nack", "ack", "peek", "listAudit"])
def test_only_hosts_mark_calls_as_forwarded(name: str) -> None:
    request = good(name, Names())
    check(name, request)
    request.forwarded = True
    with pytest.raises(PermissionDenied) as caught:
        check(name, request)
    assert caught.value.field == "forwarded"


def test_nack_that_gives_an_item_an_origin_is_refused() -> None:
    nacks = [ttypes.Nack(b"1-2", 3, metadata=b"why"), ttypes.Nack(b"1-3", 3, metadata=ORIGIN)]
    with pytest.raises(PermissionDenied) as caught:
        check("nack", ttypes.NackRequest(b"n", nacks))
    assert caught.value.field == "nacks[1].metadata"
    check("nack", ttypes.NackRequest(b"n", nacks[:1]))


@pytest.mark.parametrize("make", [items, usual])
def test_other_items_are_accepted(make: Any) -> None:
    check(
        "enqueue",
        ttypes.EnqueueRequest(b"n", make((b"", b""), (b"x" + MESSAGE, b" " + ORIGIN), (MESSAGE[:3], ORIGIN[:5]))),
    )
    check("enqueue", ttypes.EnqueueRequest(b"n", items((None, None))))


def test_restore_of_an_administrator_of_the_namespace_may_hold_messages() -> None:
    restored = [ttypes.RestoredItem(b"mail", payload=MESSAGE, metadata=ORIGIN, restore_key=b"1")]
    check("restoreItems", ttypes.RestoreItemsRequest(b"n", restored))
