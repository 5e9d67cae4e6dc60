"""Requests of extendHeldLeases are checked, and reach the queue as extensions without a token."""

from __future__ import annotations

import pytest

from foqs.core.items.item import parse_id
from foqs.core.items.life import Event, EventKind
from foqs_contract.idl import ttypes
from tests.support.fake_queue import FakeQueue
from tests.unit.rpc.test_queue_handlers import ID, refusal, serve

NUMBER = parse_id(ID, "id")[1]


@pytest.mark.parametrize("lease_ms", [None, 1, 60_000])
def test_extension_reaches_the_queue_for_each_good_id(lease_ms: int | None) -> None:
    queue = FakeQueue()
    request = ttypes.ExtendHeldLeasesRequest("default", [ID, "nonsense", ID], lease_ms)
    outcomes = serve(queue, "extendHeldLeases", request).outcomes
    assert [outcome.error.field for outcome in outcomes[1:]] == ["ids[1]", "ids[2]"]
    event = Event(EventKind.EXTEND, NUMBER, "default", token=None, lease_ms=lease_ms)
    assert queue.calls == [("apply", [(3, event)])]


@pytest.mark.parametrize(
    ("lease_ms", "code"), [(0, "INVALID_ARGUMENT"), (-1, "INVALID_ARGUMENT"), (1 << 62, "LIMIT_EXCEEDED")]
)
def test_lease_outside_the_limits_of_an_extension_is_refused_as_a_whole(lease_ms: int, code: str) -> None:
    queue = FakeQueue()
    request = ttypes.ExtendHeldLeasesRequest("default", [ID], lease_ms)
    assert refusal(queue, "extendHeldLeases", request) == (code, "lease_ms")
    assert queue.calls == []


@pytest.mark.parametrize("ids", [None, []])
def test_ids_are_required(ids: list[str] | None) -> None:
    queue = FakeQueue()
    request = ttypes.ExtendHeldLeasesRequest("default", ids)
    assert refusal(queue, "extendHeldLeases", request) == ("INVALID_ARGUMENT", "ids")
    assert queue.calls == []
