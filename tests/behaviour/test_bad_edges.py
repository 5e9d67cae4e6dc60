"""Tests values at the limits: they are accepted, kept exactly, and take effect."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any, Final

from foqs.core.items.item import TIME_MS_MAX
from foqs_contract.idl import ttypes
from foqs_contract.idl.ttypes import DeliveryPolicy, ItemState
from tests.behaviour.test_bad_fields import I32_MAX, I32_MIN, I64_MAX, I64_MIN, ITEMS_MAX, LATER, TOPICS_MAX
from tests.behaviour.wires import OK, WireSite, wire_story
from tests.support.requests import METHODS, fields, good

DAYS_OF_OURS_MS: Final = 1_700_000_000_000
"""Now or a little earlier."""
YEAR_MS: Final = 365 * 24 * 3_600_000


async def view(site: WireSite, id_: str) -> Any:
    result = await site.call("getItem", ttypes.GetItemRequest(site.namespace, id_, with_payload=True))
    assert result.failed is None, result.failed
    return result.success


async def lease_ms_max(site: WireSite) -> int:
    return int((await site.call("getNamespace", ttypes.NamespaceRequest(site.namespace))).success.lease_ms_max)


@wire_story
async def test_an_item_is_kept_exactly_at_every_edge(site: WireSite) -> None:
    longest = await lease_ms_max(site)
    items: list[dict[str, Any]] = [
        {"payload": b"", "metadata": b""},
        {"payload": b"x" * 10_240, "metadata": b"\xff" * 1_024},
        {"payload": b"\0" * 10_240, "metadata": b"\0" * 1_024},
        {"payload": bytes(range(256)) * 40, "metadata": bytes(range(256)) * 4},
        {"payload": b"'\"\\%_;\n\r\x1a", "metadata": b"\xc3\x28"},
        {"priority": I32_MIN},
        {"priority": I32_MAX},
        {"lease_ms": 1},
        {"lease_ms": longest},
        {"attempts_max": 0},
        {"attempts_max": I32_MAX},
        {"delivery_policy": DeliveryPolicy.AT_MOST_ONCE},
    ]
    ids = await site.put(*(ttypes.NewItem("t", **fields) for fields in items))
    for id_, fields_ in zip(ids, items, strict=True):
        seen = await view(site, id_)
        assert seen.state == ItemState.READY
        assert {name: getattr(seen, name) for name in fields_} == fields_
        assert seen.payload_bytes == len(fields_.get("payload", b""))


@wire_story
async def test_items_are_delivered_in_order_over_the_whole_range_of_priorities(site: WireSite) -> None:
    priorities = [I32_MIN, I32_MIN + 1, -(1 << 16), -256, -1, 0, 1, 255, 1 << 16, I32_MAX - 1, I32_MAX]
    mixed = list(priorities)
    random.Random(1).shuffle(mixed)
    await site.put(*(ttypes.NewItem("t", priority) for priority in mixed))
    assert [delivery.priority for delivery in await site.get("t")] == priorities


@wire_story
async def test_past_time_means_now_and_a_time_in_9999_is_kept(site: WireSite) -> None:
    past = [I64_MIN, -1, 0, 1, 1_000_000_000_000]
    first = await site.put(ttypes.NewItem("past"))
    await site.pass_ms(50)  # two shards' clocks may differ by some milliseconds
    ids = await site.put(*(ttypes.NewItem("past", deliver_after_ms=moment) for moment in past))
    taken = [delivery.id for delivery in await site.get("past")]
    assert (taken[0], set(taken[1:])) == (first[0], set(ids))
    future: list[dict[str, Any]] = [
        {"deliver_after_ms": TIME_MS_MAX},
        {"delay_ms": TIME_MS_MAX},
        {"delay_ms": 100 * YEAR_MS, "ttl_ms": TIME_MS_MAX},
        {"deliver_after_ms": TIME_MS_MAX, "ttl_ms": TIME_MS_MAX},
    ]
    for fields_ in future:
        [id_] = await site.put(ttypes.NewItem("future", **fields_))
        seen = await view(site, id_)
        assert seen.state == ItemState.DEFERRED
        assert 90 * YEAR_MS < seen.due_in_ms < TIME_MS_MAX - DAYS_OF_OURS_MS
        assert (seen.ttl_remaining_ms is None) == ("ttl_ms" not in fields_)
    [id_] = await site.put(ttypes.NewItem("lasting", ttl_ms=TIME_MS_MAX))
    assert (await view(site, id_)).ttl_remaining_ms > 1_000 * YEAR_MS
    result = await site.call("dequeue", ttypes.DequeueRequest(site.namespace, [ttypes.TopicCount("future", 9)]))
    assert result.success.items == []


@wire_story
async def test_nack_and_update_accept_the_farthest_times(site: WireSite) -> None:
    await site.put(*(ttypes.NewItem("t", n) for n in range(4)))
    first, second, third, fourth = await site.get("t")
    nacks = [
        ttypes.Nack(first.id, first.token, delay_ms=TIME_MS_MAX),
        ttypes.Nack(second.id, second.token, deliver_after_ms=TIME_MS_MAX, metadata=b"m" * 1_024),
        ttypes.Nack(third.id, third.token, deliver_after_ms=I64_MIN, metadata=b""),
        ttypes.Nack(fourth.id, fourth.token, delay_ms=0),
    ]
    assert await site.outcome("nack", ttypes.NackRequest(site.namespace, nacks)) == OK
    states = [(await view(site, each.id)).state for each in (first, second, third, fourth)]
    assert states == [ItemState.DEFERRED, ItemState.DEFERRED, ItemState.READY, ItemState.READY]
    for each in (first, second):
        assert 7_000 * YEAR_MS < (await view(site, each.id)).due_in_ms < TIME_MS_MAX - DAYS_OF_OURS_MS
    for change, state in (
        (ttypes.Change(I32_MIN, delay_ms=TIME_MS_MAX), ItemState.DEFERRED),
        (ttypes.Change(I32_MAX, deliver_after_ms=I64_MIN), ItemState.READY),
        (ttypes.Change(0, deliver_after_ms=TIME_MS_MAX, metadata=b"\0" * 1_024), ItemState.DEFERRED),
        (ttypes.Change(1, delay_ms=0), ItemState.READY),
    ):
        ids = [each.id for each in (first, second, third, fourth)]
        assert await site.outcome("update", ttypes.UpdateRequest(site.namespace, ids, change)) == OK
        assert [(seen.state, seen.priority) for seen in [await view(site, id_) for id_ in ids]] == (
            [(state, change.priority)] * 4
        )


@wire_story
async def test_longest_lease_is_granted(site: WireSite) -> None:
    longest = await lease_ms_max(site)
    await site.put(ttypes.NewItem("t"))
    [delivery] = await site.get("t", lease_ms=longest)
    assert longest - 60_000 < delivery.lease_remaining_ms <= longest
    extension = ttypes.Extension(delivery.id, delivery.token, longest)
    assert await site.outcome("extendLease", ttypes.ExtendLeaseRequest(site.namespace, [extension])) == OK
    one_more = replace_field(extension, "lease_ms", longest + 1)
    assert await site.outcome("extendLease", ttypes.ExtendLeaseRequest(site.namespace, [one_more])) == (
        "LIMIT_EXCEEDED", "extensions[0].lease_ms",
    )  # fmt: skip


def replace_field(struct: Any, name: str, value: Any) -> Any:
    fields_ = {each[2]: getattr(struct, each[2]) for each in struct.thrift_spec if each}
    return type(struct)(**{**fields_, name: value})


@wire_story
async def test_longest_calls_are_served(site: WireSite) -> None:
    ids = await site.put(*(ttypes.NewItem("t") for _ in range(ITEMS_MAX)))
    topics = [ttypes.TopicCount(f"{n}", ITEMS_MAX) for n in range(TOPICS_MAX - 1)]
    request = ttypes.DequeueRequest(site.namespace, [*topics, ttypes.TopicCount("t", ITEMS_MAX)], wait_ms=5_000)
    held: dict[str, Any] = {}
    while len(held) < ITEMS_MAX:
        deliveries = (await site.call("dequeue", request)).success.items
        assert deliveries
        held |= {each.id: each for each in deliveries}
    assert set(held) == set(ids)
    acks = ttypes.AckRequest(site.namespace, [ttypes.Lease(each.id, each.token) for each in held.values()])
    assert await site.outcomes("ack", acks) == [OK] * ITEMS_MAX


@wire_story
async def test_huge_time_is_clamped_and_not_refused(site: WireSite) -> None:
    names = await site.enqueue_in_each_state("t")
    for method in METHODS:
        if method in LATER or method in {"importConfig", "deleteNamespace"}:
            continue
        request = good(method, replace(names, namespace="nowhere"))
        if method == "createNamespace":
            request.settings.name = site.namespace
        field = next(field for field in fields(request) if field.path == "timeout_ms")
        code, at = await site.outcome(method, field.changed(request, I64_MAX))
        assert (code, at) == OK or code == "NAMESPACE_NOT_FOUND", method
    waiting = ttypes.DequeueRequest(site.namespace, [ttypes.TopicCount("empty", 1)], wait_ms=I64_MAX, timeout_ms=50)
    asking = asyncio.ensure_future(site.call("dequeue", waiting))
    await site.pass_ms(50)
    assert (await asking).success.items == []
