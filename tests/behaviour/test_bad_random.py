"""Tests thousands of bad calls: each gets a reply of its kind, and no item is lost or left over.

Values of fields, or bytes, are changed at random, with the same seed for all hosts.
"""

from __future__ import annotations

import logging
from random import Random
from typing import Any, Final

import pytest

from foqs_contract.idl import ttypes
from foqs_contract.idl.ttypes import BulkAction
from tests.behaviour.test_bad_fields import BAD, I64_MAX
from tests.behaviour.wires import OK, WireSite, wire_story
from tests.support.malformed_requests import mutate
from tests.support.requests import METHODS, Names, fields, good
from tests.support.rpc_server import call, frame

CALLS: Final = 2_000
SEED: Final = 11
TOPICS: Final = ("a", "A", "a ")
LEFT_OUT: Final = {"importConfig", "deleteNamespace", "startBulkJob"}
"""The calls that affect more than the story's own items, end the story, or go on after their reply."""
GOOD: Final[dict[str, list[Any]]] = {
    "topic": [*TOPICS],
    "priority": [-1, 0, 1],
    "delay_ms": [0, 1, 20],
    "deliver_after_ms": [0],
    "lease_ms": [1, 60_000],
    "ttl_ms": [1, 60_000],
    "delivery_policy": [1, 2],
    "attempts_max": [0, 1],
    "idempotency_key": ["k", "K"],
    "count": [1, 10],
    "dead": [True, False],
    "timeout_ms": [I64_MAX],
    "action": [1, 2, 3],
    "states": [1, 2, 3, 4],
    "permissions": [1, 2, 3],
    "metadata": [b"", b"m"],
}
"""By a field's name, values that may be accepted."""


def varied(rng: Random, request: Any) -> Any:
    """Return the request with some fields changed or missing, valid or not."""
    for _ in range(rng.randint(0, 3)):
        field = rng.choice(list(fields(request)))
        if field.path in {"namespace_name", "settings.name", "grant.namespace_name"} and rng.random() < 0.9:
            continue  # else nearly all calls would name no namespace
        kind = rng.random()
        if kind < 0.1 and not isinstance(field.steps[-1], int):
            request = field.changed(request, None)
        elif kind < 0.3 and field.name in BAD and not field.name.endswith("s"):
            request = field.changed(request, rng.choice(BAD[field.name])[0])
        elif field.name in GOOD and (field.name[-1] != "s" or isinstance(field.steps[-1], int)):
            request = field.changed(request, rng.choice(GOOD[field.name]))
    return request


class Ledger:
    """The items and the latest leases that replies named."""

    def __init__(self) -> None:
        self.given: set[str] = set()
        self.leases: list[tuple[str, int]] = []
        self.codes: set[str] = set()

    def read(self, result: Any) -> None:
        failed = getattr(result, "failed", None)
        reply: Any = getattr(result, "success", None)
        entries: list[Any] = [failed] if failed is not None else []
        if reply is not None:
            entries += getattr(reply, "results", None) or getattr(reply, "outcomes", None) or []
        for entry in entries:
            if entry.error is not None:
                assert entry.error.message, entry
                assert "the host failed" not in entry.error.message, entry
                self.codes.add(ttypes.ErrorCode(entry.error.code).name)
            elif getattr(entry, "id", None) is not None:
                self.given.add(entry.id)
            self.given.update(getattr(entry, "ids", None) or ())
        if isinstance(reply, ttypes.DequeueReply):
            self.leases += [(each.id or "", each.token or 0) for each in reply.items or ()]


@wire_story
async def test_random_bad_calls_get_replies_and_lose_no_item(site: WireSite) -> None:
    rng = Random(SEED)
    ledger = Ledger()
    methods = [method for method in METHODS if method not in LEFT_OUT]
    often = ["enqueue", "dequeue", "ack", "nack", "extendLease", "release", "update", "cancel", "redrive"]
    for _ in range(CALLS):
        method = rng.choice(methods if rng.random() < 0.5 else often)
        id_, token = rng.choice(ledger.leases[-20:]) if ledger.leases else ("0-8796093022209", 1)
        request = varied(rng, good(method, Names(site.namespace, rng.choice(TOPICS), id_, token)))
        if rng.random() < 0.7:
            ledger.read(await site.call(method, request))
        else:
            message = mutate(rng, call(method, request, 1, compact=rng.random() < 0.5)[4:])
            ledger.read(await site.anything(frame(message)))
    assert {"INVALID_ARGUMENT", "LIMIT_EXCEEDED", "NOT_FOUND", "STALE_LEASE"} <= ledger.codes
    assert len(ledger.given) > 50
    await assert_nothing_is_left_behind(site, ledger.given)


async def assert_nothing_is_left_behind(site: WireSite, given: set[str]) -> None:
    """Check that every item was returned to a caller, is counted, and can be ended; then the namespace is empty."""
    await site.pass_ms(50)  # items that were delayed or leased for a moment are READY by now
    while True:
        before = (await site.call("getUsage", ttypes.NamespaceRequest(site.namespace))).success.items
        held = {name for name in await site.all() if name[0].isdigit()}
        if before == len(held):
            break
        await site.pass_ms(20)  # an item was changing its state
    assert held <= given
    for topic in (*TOPICS, "t"):
        await site.outcome("resumeTopic", ttypes.TopicRequest(site.namespace, topic))
    cancelled, cursor = 0, None
    while True:
        everything = ttypes.BulkRequest(
            site.namespace, ttypes.ItemFilter(), BulkAction.CANCEL, page=ttypes.Page(1_000, cursor)
        )
        reply = (await site.call("bulk", everything)).success
        cancelled += reply.items
        cursor = reply.next_cursor
        if cursor is None:
            break
    assert cancelled <= len(held)
    assert (await site.call("getUsage", ttypes.NamespaceRequest(site.namespace))).success.items == 0
    assert await site.outcome("deleteNamespace", ttypes.NamespaceRequest(site.namespace)) == OK


@pytest.fixture(autouse=True)
def nothing_goes_wrong_inside(caplog: pytest.LogCaptureFixture) -> Any:
    """Check that the fake, which runs in this process, logs no error."""
    with caplog.at_level(logging.ERROR, "foqs"):
        yield
    assert [record.getMessage() for record in caplog.get_records("call")] == []
