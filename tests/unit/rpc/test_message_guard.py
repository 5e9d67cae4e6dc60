"""Items that pass for messages of SQS are refused from producers and consumers, and from nobody else."""

from __future__ import annotations

from typing import Any

import pytest

from foqs.rpc.message_guard import MessageGuard
from foqs.rpc.methods import Caller
from foqs.rpc.request_bytes import UsualItems
from foqs.sqs import envelope, origin
from foqs_contract.errors import PermissionDenied
from foqs_contract.idl import ttypes
from tests.unit.rpc.test_audited_service import Peer, Service, Session, answer

MESSAGE = envelope.encode(envelope.Message("pay", sender="boss"))
ORIGIN = origin.encode(origin.Origin("dead", "mail", "id", 3, 7))


def call(name: str, request: Any, session: Session | None) -> list[Any]:
    peer: Any = Peer(session)
    caller: Caller = peer
    MessageGuard(Service(answer)).methods[name.encode()].handle(request, 1.0, caller)
    return list(peer.replies)


def items(*contents: tuple[bytes | None, bytes | None]) -> Any:
    return [ttypes.NewItem(b"mail", payload=payload, metadata=metadata) for payload, metadata in contents]


def usual(*contents: tuple[bytes, bytes]) -> Any:
    return UsualItems([(b"mail", 0, payload, metadata, None) for payload, metadata in contents])


@pytest.mark.parametrize("make", [items, usual])
@pytest.mark.parametrize(
    ("content", "field"), [((MESSAGE, b""), "items[1].payload"), ((b"x", ORIGIN), "items[1].metadata")]
)
def test_item_that_names_a_sender_or_an_origin_is_refused(make: Any, content: tuple[bytes, bytes], field: str) -> None:
    request = ttypes.EnqueueRequest(b"n", make((b"x", b"y"), content))
    with pytest.raises(PermissionDenied) as caught:
        call("enqueue", request, Session(is_administrator=False))
    assert caught.value.field == field


def test_mark_of_a_forwarded_call_helps_nobody_but_hosts() -> None:
    request = ttypes.EnqueueRequest(b"n", items((MESSAGE, b"")), forwarded=True)
    with pytest.raises(PermissionDenied):
        call("enqueue", request, Session(is_administrator=False))
    assert call("enqueue", request, Session()) == ["done"]


def test_nack_that_gives_an_item_an_origin_is_refused() -> None:
    nacks = [ttypes.Nack(b"1-2", 3, metadata=b"why"), ttypes.Nack(b"1-3", 3, metadata=ORIGIN)]
    with pytest.raises(PermissionDenied) as caught:
        call("nack", ttypes.NackRequest(b"n", nacks), Session(is_administrator=False))
    assert caught.value.field == "nacks[1].metadata"
    assert call("nack", ttypes.NackRequest(b"n", nacks[:1]), Session(is_administrator=False)) == ["done"]


@pytest.mark.parametrize("make", [items, usual])
def test_other_items_are_accepted(make: Any) -> None:
    contents = make((b"", b""), (b"x" + MESSAGE, b" " + ORIGIN), (MESSAGE[:3], ORIGIN[:5]))
    assert call("enqueue", ttypes.EnqueueRequest(b"n", contents), Session(is_administrator=False)) == ["done"]
    assert call("enqueue", ttypes.EnqueueRequest(b"n", items((None, None))), Session(is_administrator=False)) == [
        "done"
    ]


def test_administrators_and_hosts_without_authentication_may_send_messages() -> None:
    request = ttypes.EnqueueRequest(b"n", items((MESSAGE, ORIGIN)))
    assert call("enqueue", request, Session()) == call("enqueue", request, None) == ["done"]


def test_only_calls_with_which_producers_and_consumers_give_content_are_guarded() -> None:
    plain = Service(answer)
    guarded = MessageGuard(plain)
    changed = {name for name, method in guarded.methods.items() if method.handle is not plain.methods[name].handle}
    assert changed == {b"enqueue", b"nack"}
