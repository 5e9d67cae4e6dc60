"""Tests names that look alike, or that a database or language might treat as equal: each is kept exactly."""

from __future__ import annotations

from typing import Any, Final

from foqs_contract.idl import ttypes
from foqs_contract.idl.ttypes import BulkAction
from tests.behaviour.wires import OK, STATES, WireSite, wire_story

NAMES: Final = [
    "a", "A", "a ", " a", "a\t", "a\n", "a\r\n", "a\u00a0", "a\u200b", "\ufeffa", "\uff41", "\u0430",  # similar to "a"
    "\u00e9", "e\u0301", "e", "\u00c9",  # composed, decomposed, without, upper case
    "\u00df", "ss", "\u1e9e", "I", "i", "\u0130", "\u0131",  # special in upper or lower case
    "\N{GRINNING FACE}", "\N{GRINNING FACE}" * 63 + "abc", "\U0010ffff", "\ud7ff", "\ufffd",
    "%", "_", "a%", "'", '"', "\\", "\\0", "`", ";--", "x" * 254 + "y", "x" * 254 + "Y", "\u00e9" * 127,
    "0", "00", "null", ".", "..", "/", "a/b", "a:b", ":", "\x01", "\x7f", " ",
]  # fmt: skip


async def named(site: WireSite) -> dict[str, str]:
    """Enqueue an item in a topic of each name, with the name as its payload. Return the ids by name."""
    ids = await site.put(*(ttypes.NewItem(name, payload=name.encode()) for name in NAMES))
    return dict(zip(NAMES, ids, strict=True))


async def ready(site: WireSite, topic: str) -> list[str]:
    """Return the payloads of a topic's ready items."""
    request = ttypes.PeekRequest(site.namespace, topic, with_payload=True)
    result = await site.call("peek", request)
    assert result.failed is None, (topic, result.failed)
    return [view.payload.decode() for view in result.success.items]


async def count(site: WireSite, topic: str) -> int:
    result = await site.call("countItems", ttypes.CountItemsRequest(site.namespace, ttypes.ItemFilter(topic)))
    assert result.failed is None, (topic, result.failed)
    return int(result.success.items)


@wire_story
async def test_similar_topics_are_distinct_in_every_call_that_reads(site: WireSite) -> None:
    await named(site)
    for name in NAMES:
        assert (await ready(site, name), await count(site, name)) == ([name], 1)
    found: list[str] = []
    cursor: str | None = None
    while True:
        page = ttypes.Page(1, cursor)
        request = ttypes.GetActiveTopicsRequest(site.namespace, ttypes.TopicFilter(states=STATES), page)
        reply = (await site.call("getActiveTopics", request)).success
        assert [stats.ready for stats in reply.topics] == [1]
        found += [stats.topic for stats in reply.topics]
        cursor = reply.next_cursor
        if cursor is None:
            break
    assert found == sorted(NAMES)
    for prefix in ("a", "A", "\u00e9", "e", "%", "\N{GRINNING FACE}"):
        request = ttypes.GetActiveTopicsRequest(site.namespace, ttypes.TopicFilter(prefix))
        reply = (await site.call("getActiveTopics", request)).success
        assert [stats.topic for stats in reply.topics] == sorted(n for n in NAMES if n.startswith(prefix))


@wire_story
async def test_similar_topics_are_delivered_and_paused_separately(site: WireSite) -> None:
    ids = await named(site)
    paused = ("a", "\u00e9", "ss", "\N{GRINNING FACE}", "%")
    for name in paused:
        assert await site.outcome("pauseTopic", ttypes.TopicRequest(site.namespace, name)) == OK
    everything = ttypes.DequeueRequest(site.namespace, [ttypes.TopicCount(name, 9) for name in NAMES], wait_ms=5_000)
    got: dict[str, Any] = {}
    while len(got) < len(NAMES) - len(paused):
        deliveries = (await site.call("dequeue", everything)).success.items
        assert deliveries
        got |= {delivery.topic: delivery for delivery in deliveries}
    assert {name: (d.id, d.payload.decode()) for name, d in got.items()} == {
        name: (ids[name], name) for name in NAMES if name not in paused
    }
    for name in paused:
        assert await site.outcome("resumeTopic", ttypes.TopicRequest(site.namespace, name)) == OK
        assert [delivery.id for delivery in await site.get(name)] == [ids[name]]


@wire_story
async def test_similar_topics_are_emptied_separately(site: WireSite) -> None:
    ids = await named(site)
    gone = ("A", "a ", "e\u0301", "\u0131", "_", "\\")
    for name in gone[:3]:
        bulk = ttypes.BulkRequest(site.namespace, ttypes.ItemFilter(name), BulkAction.CANCEL)
        reply = (await site.call("bulk", bulk)).success
        assert (reply.items, reply.refused) == (1, 0)
    purged = 0
    for name in gone[3:]:
        code, _ = await site.outcome("purgeTopic", ttypes.TopicRequest(site.namespace, name))
        assert code in {"OK", "NOT_IMPLEMENTED"}
        purged += code == "OK"
    left = set(NAMES) - set(gone[: 3 + purged])
    for name in NAMES:
        assert await ready(site, name) == ([name] if name in left else []), name
    assert {view["topic"] for id_, view in (await site.all()).items() if id_ in ids.values()} >= left


@wire_story
async def test_similar_keys_are_distinct(site: WireSite) -> None:
    items = [ttypes.NewItem("keys", payload=name.encode(), idempotency_key=name) for name in NAMES]
    ids = await site.put(*items)
    assert len(set(ids)) == len(NAMES)
    again = (await site.call("enqueue", ttypes.EnqueueRequest(site.namespace, items))).success.results
    assert [(result.id, result.repeated) for result in again] == [(id_, True) for id_ in ids]
    assert await count(site, "keys") == len(NAMES)


@wire_story
async def test_similar_namespaces_and_principals_are_distinct(site: WireSite) -> None:
    namespaces = [site.namespace + end for end in ("-a", "-A", "-a ", "-\u00e9", "-e\u0301", "-\N{GRINNING FACE}")]
    for name in namespaces:
        assert await site.outcome("createNamespace", ttypes.SetNamespaceRequest(ttypes.NamespaceSettings(name))) == OK
    for name in namespaces:
        await site.other(name).put(ttypes.NewItem("t", payload=name.encode(), idempotency_key="same"))
    for name in namespaces:
        assert await ready(site.other(name), "t") == [name]
        grant = ttypes.Grant("somebody", name, [1])
        assert await site.outcome("setGrant", ttypes.GrantRequest(grant)) == OK
    for name in NAMES:
        grant = ttypes.Grant(name, namespaces[0], [1 + len(name) % 3])
        assert await site.outcome("setGrant", ttypes.GrantRequest(grant)) == OK
    listed = (await site.call("listGrants", ttypes.NamespaceRequest(namespaces[0]))).success.grants
    expected = {**{name: [1 + len(name) % 3] for name in NAMES}, "somebody": [1]}
    assert {grant.principal: grant.permissions for grant in listed} == expected
    exported = (await site.call("exportConfig", ttypes.ListRequest())).success
    assert await site.outcome("importConfig", ttypes.ConfigDocument(exported.json)) == OK
    assert (await site.call("exportConfig", ttypes.ListRequest())).success == exported
