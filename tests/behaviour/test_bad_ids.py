"""Tests ids, tokens, keys and cursors that are foreign, ended or of another kind: the error, and that nothing changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import pytest

from foqs_contract.call_table import CALLS, Route
from foqs_contract.idl import ttypes
from foqs_contract.idl.ttypes import BulkAction, DeliveryPolicy
from tests.behaviour.test_bad_fields import I64_MAX, I64_MIN, assert_refused
from tests.behaviour.wires import OK, Outcome, WireSite, fake_wire, wire_story
from tests.support.aio import run
from tests.support.requests import Names, good

LISTS: Final = {row.name: row.entries for row in CALLS.values() if row.route is Route.BY_ID}
"""The calls with an entry for each item, and the name of the list."""
BY_ID: Final = (*LISTS, "getItem", "explain")
BY_LEASE: Final = [method for method, field in LISTS.items() if field != "ids"]
GONE: Final[Outcome] = ("ALREADY_GONE", None)
NOT_FOUND: Final[Outcome] = ("NOT_FOUND", None)
STALE: Final[Outcome] = ("STALE_LEASE", None)
NOT_OWNER: Final[Outcome] = ("NOT_OWNER", None)
CONFLICT: Final[Outcome] = ("KEY_CONFLICT", None)
REPEATED: Final[Outcome] = ("REPEATED", None)

Case = tuple[str, str, Any, Outcome]


async def held(site: WireSite, topic: str) -> dict[str, Names]:
    """Enqueue an item of each state, and return them by state."""
    leased = await site.enqueue_in_each_state(topic)
    found = {}
    for number, state in enumerate(("deferred", "ready", "leased", "dead"), 1):
        [seen] = (await site.call("peek", ttypes.PeekRequest(site.namespace, topic, number))).success.items
        found[state] = replace(leased, id=seen.id)
    return found


# ------------------------------------------------------------------------ ids


@wire_story
async def test_id_of_another_namespace_is_not_found_and_its_item_is_unchanged(site: WireSite) -> None:
    theirs = await held(site, "t")
    other = site.other(site.namespace + "-other")
    settings = ttypes.NamespaceSettings(other.namespace)
    assert await site.outcome("createNamespace", ttypes.SetNamespaceRequest(settings)) == OK
    mine = await held(other, "t")

    def every(own: WireSite, names: dict[str, Names]) -> Iterator[Case]:
        for method in BY_ID:
            for state, name in names.items():
                yield method, state, good(method, replace(name, namespace=own.namespace)), NOT_FOUND

    await assert_refused(site, every(other, theirs))
    await assert_refused(other, every(site, mine))
    for own, names in ((site, theirs), (other, mine)):
        for name in names.values():
            seen = await own.call("getItem", ttypes.GetItemRequest(own.namespace, name.id))
            assert (seen.success.id, seen.failed) == (name.id, None)
        ack = ttypes.AckRequest(own.namespace, [ttypes.Lease(names["leased"].id, names["leased"].token)])
        assert await own.outcomes("ack", ack) == [OK]


@wire_story
async def test_id_that_was_never_issued_is_not_found(site: WireSite) -> None:
    names = await site.enqueue_in_each_state("t")
    shard, number = map(int, names.id.split("-"))
    sequence = number & (1 << 43) - 1
    unissued: list[tuple[str, Outcome, Outcome]] = [
        # the id; the outcome of an ack or a cancel; the outcome of all other calls
        (f"{shard}-{(1 << 63) - 1}", GONE, NOT_FOUND),
        (f"{shard}-{number + (1 << 43)}", GONE, NOT_FOUND),  # the next epoch
        (f"{shard}-{number - sequence + (1 << 42)}", NOT_FOUND, NOT_FOUND),  # of this epoch, far ahead
        (f"65535-{number}", NOT_OWNER, NOT_OWNER),
        (f"{shard + 4_000}-{number}", NOT_OWNER, NOT_OWNER),
    ]

    def every() -> Iterator[Case]:
        for id_, ended, else_ in unissued:
            for method in BY_ID:
                wanted = ended if method in {"ack", "cancel"} else else_
                if method == "complete" and ended is GONE:
                    wanted = STALE
                yield method, id_, good(method, replace(names, id=id_)), wanted

    await assert_refused(site, every())


@wire_story
async def test_duplicate_id_is_refused_the_second_time(site: WireSite) -> None:
    for method, field in LISTS.items():
        names = await site.enqueue_in_each_state(f"twice-{method}")
        request = good(method, names)
        entries = getattr(request, field)
        entries += entries
        if method == "complete":
            request.items += request.items
        first, second = await site.outcomes(method, request)
        # The item is leased.
        assert first == {"redrive": NOT_FOUND, "moveItems": ("INVALID_ARGUMENT", None)}.get(method, OK)
        assert second == ("INVALID_ARGUMENT", f"{field}[1].id" if method in BY_LEASE else f"{field}[1]")


@wire_story
async def test_bad_entry_affects_no_other(site: WireSite) -> None:
    for method in BY_LEASE:
        one, other = await site.put(ttypes.NewItem(method), ttypes.NewItem(method))
        tokens = {delivery.id: delivery.token for delivery in await site.get(method)}
        requests = [good(method, Names(site.namespace, id=id_, token=tokens.get(id_, 1))) for id_ in (one, other)]
        bad = [good(method, Names(site.namespace, id=id_)) for id_ in ("no id", "65535-8796093022209")]
        field = LISTS[method]
        if method == "complete":
            requests[0].items *= 4
        entries = [getattr(each, field)[0] for each in (requests[0], bad[0], bad[1], requests[1])]
        setattr(requests[0], field, entries)
        assert await site.outcomes(method, requests[0]) == [OK, ("INVALID_ARGUMENT", f"{field}[1].id"), NOT_OWNER, OK]


# --------------------------------------------------------------------- leases


@wire_story
async def test_wrong_token_changes_nothing(site: WireSite) -> None:
    names = await held(site, "t")
    token = names["leased"].token

    def every() -> Iterator[Case]:
        for wrong in (0, -1, 1, token - 1, token + 1, -token, token ^ 1 << 62, I64_MIN, I64_MAX):
            for state, name in names.items():
                for method in BY_LEASE:
                    yield method, f"{wrong} of {state}", good(method, replace(name, token=wrong)), STALE

    await assert_refused(site, every())


@wire_story
async def test_every_call_on_an_acked_item_changes_nothing(site: WireSite) -> None:
    names = await site.enqueue_in_each_state("t")
    assert await site.outcomes("ack", good("ack", names)) == [OK]

    def every() -> Iterator[Case]:
        for _ in range(2):
            for method in BY_ID:
                gone = {"ack": GONE, "cancel": GONE, "complete": STALE}.get(method, NOT_FOUND)
                yield method, "acked", good(method, names), gone

    await assert_refused(site, every())


@wire_story
async def test_ended_lease_can_be_acked_and_extended_and_only_until_the_next_lease(site: WireSite) -> None:
    await site.put(*(ttypes.NewItem("t") for _ in range(2)))
    first, second = [Names(site.namespace, "t", each.id, each.token) for each in await site.get("t", lease_ms=50)]
    await site.pass_ms(50)

    while (await site.all())["topic 't'"][0] != 2:  # a topic is counted after its items are written
        await site.pass_ms(20)
    late = ("nack", "release")
    await assert_refused(site, ((method, "over", good(method, first), STALE) for method in late))
    assert await site.outcomes("extendLease", good("extendLease", first)) == [OK]
    assert (await site.call("getItem", good("getItem", first))).success.state == 3
    assert await site.outcomes("ack", good("ack", first)) == [OK]
    [again] = await site.get("t")
    assert again.id == second.id
    await assert_refused(site, ((method, "superseded", good(method, second), STALE) for method in BY_LEASE))
    assert await site.outcomes("ack", good("ack", replace(second, token=again.token))) == [OK]


@wire_story
async def test_lease_of_a_returned_item_has_ended(site: WireSite) -> None:
    for method in ("nack", "release"):
        await site.put(ttypes.NewItem(method))
        [delivery] = await site.get(method)
        name = Names(site.namespace, method, delivery.id, delivery.token)
        request = good(method, name)
        if method == "nack":
            request.nacks[0].delay_ms = 3_600_000  # otherwise it becomes READY during the test
        assert await site.outcomes(method, request) == [OK]
        late = ("nack", "extendLease", "release")
        await assert_refused(site, ((each, f"after {method}", good(each, name), STALE) for each in late))


# ----------------------------------------------------------------------- keys


@wire_story
async def test_key_with_an_item_that_differs_in_any_field_is_a_conflict(site: WireSite) -> None:
    plain: dict[str, Any] = {"topic": "t", "payload": b"x", "idempotency_key": "key"}
    whole: dict[str, Any] = {
        **plain, "idempotency_key": "other key", "priority": 1, "metadata": b"m", "delay_ms": 3_600_000,
        "lease_ms": 1_000, "ttl_ms": 7_200_000, "delivery_policy": DeliveryPolicy.AT_MOST_ONCE, "attempts_max": 3,
    }  # fmt: skip
    await site.put(ttypes.NewItem(**plain), ttypes.NewItem(**whole))
    others: list[dict[str, Any]] = [
        {"topic": "T"}, {"topic": "t "}, {"payload": b"X"}, {"payload": b""}, {"payload": b"x\0"}, {"priority": 2},
        {"metadata": b"n"}, {"delay_ms": 3_600_001}, {"delay_ms": None, "deliver_after_ms": 3_600_000},
        {"lease_ms": 1_001}, {"ttl_ms": 7_200_001}, {"delivery_policy": DeliveryPolicy.AT_LEAST_ONCE}, {"attempts_max": 4},
    ]  # fmt: skip
    swapped = {"payload": b"xm", "metadata": b""}

    def every() -> Iterator[Case]:
        for first in (plain, whole):
            for more in ({}, *others, swapped):
                item = ttypes.NewItem(**{**first, **more})
                yield (
                    "enqueue",
                    str(more),
                    ttypes.EnqueueRequest(site.namespace, [item]),
                    CONFLICT if more else REPEATED,
                )

    await assert_refused(site, every())


@wire_story
async def test_first_item_wins_if_a_key_is_twice_in_a_call(site: WireSite) -> None:
    def new(payload: bytes) -> Any:
        return ttypes.NewItem("t", payload=payload, idempotency_key="key")

    request = ttypes.EnqueueRequest(site.namespace, [new(b"1"), new(b"2"), new(b"1"), ttypes.NewItem("t")])
    assert await site.outcomes("enqueue", request) == [OK, CONFLICT, REPEATED, OK]
    found: list[Any] = []
    while len(found) < 2:
        found += await site.get("t")
    assert [each.payload for each in found if each.payload] == [b"1"]


def test_key_can_be_used_again_after_its_window() -> None:
    async def story() -> None:
        async with fake_wire() as site:
            window_ms = 121_000
            settings = ttypes.NamespaceSettings(site.namespace, key_window_ms=window_ms)
            assert await site.outcome("updateNamespace", ttypes.SetNamespaceRequest(settings)) == OK
            one, other = [
                ttypes.EnqueueRequest(site.namespace, [ttypes.NewItem("t", payload=payload, idempotency_key="key")])
                for payload in (b"1", b"2")
            ]
            assert await site.outcome("enqueue", one) == OK
            await site.pass_ms(window_ms - 1_000)
            assert [await site.outcome("enqueue", each) for each in (one, other)] == [REPEATED, CONFLICT]
            await site.pass_ms(1_001)
            assert [await site.outcome("enqueue", each) for each in (other, other, one)] == [OK, REPEATED, CONFLICT]

    run(story())


# ----------------------------------------------------------------- the others


@wire_story
async def test_duplicate_topic_in_a_dequeue_is_refused(site: WireSite) -> None:
    await site.enqueue_in_each_state("t")
    topics = [ttypes.TopicCount(topic, 1) for topic in ("t", "T", "t")]
    request = ttypes.DequeueRequest(site.namespace, topics)
    await assert_refused(site, iter([("dequeue", "twice", request, ("INVALID_ARGUMENT", "topics[2].topic"))]))


PEEK_CURSOR: Final = "0:1700000000000:8796093022209:0"
WALK_CURSOR: Final = "1700000000000:0:2:0:1700000000000:8796093022209:t"
PAGE_CURSOR: Final = "1700000000000:8796093022210:8796093022209"
GARBAGE: Final = [
    "", "x", ":", "::", "1", "1:2", "1:2:3", "1:2:3:4:5", "-", "0:0:0:0", "0:-1:1:0", f"{1 << 31}:0:1:0", f"0:0:{1 << 63}:0",
    " 0:1:1:0", "0:1:1:0 ", "0:1_0:1:0", "+0:1:1:0", "00:1:1:0", "0:01:1:0", "\u0660:1:1:0", "0:1:1:0\n", "1e3:1:1:0",
    "0:1:1:65536", "0:1:1:-1", "9" * 4_096, "0:0:0:" + "9" * 4_000,
    ":" * 4_096, "\0", WALK_CURSOR.replace(":2:", ":9:"), WALK_CURSOR.replace("17", "017", 1), "-" + WALK_CURSOR,
    WALK_CURSOR.replace(":0:", ":65536:", 1), "9" * 30 + WALK_CURSOR, f"{1 << 60}{WALK_CURSOR[13:]}",
    "1:1:2", "-1:2:1", "1:2:-1", f"1:{1 << 63}:1", f"{1 << 60}:2:1", PAGE_CURSOR + ":", "0" + PAGE_CURSOR,
]  # fmt: skip


@wire_story
async def test_malformed_or_foreign_cursor_is_refused(site: WireSite) -> None:
    await site.enqueue_in_each_state("t")

    def asked(cursor: str) -> Sequence[tuple[str, Any]]:
        page = ttypes.Page(1, cursor)
        only = ttypes.ItemFilter("t")
        return [
            ("peek", ttypes.PeekRequest(site.namespace, "t", page=page)),
            ("listDead", ttypes.ListDeadRequest(site.namespace, page=page)),
            ("bulk", ttypes.BulkRequest(site.namespace, only, BulkAction.CANCEL, page=page)),
            ("listItems", ttypes.ListItemsRequest(site.namespace, shard=0, page=page)),
            ("listShards", ttypes.ListRequest(page)),
        ]

    def every() -> Iterator[Case]:
        refused = ("INVALID_ARGUMENT", "page.cursor")
        for cursor in (*GARBAGE, PEEK_CURSOR, WALK_CURSOR, PAGE_CURSOR):
            for method, request in asked(cursor):
                own = {
                    "peek": cursor == PEEK_CURSOR,
                    "listItems": cursor == PAGE_CURSOR,
                    "listShards": cursor in {"1", "9" * 4_096},
                }
                if not own.get(method, cursor == WALK_CURSOR):
                    yield method, cursor, request, refused

    await assert_refused(site, every())


@wire_story
async def test_any_name_can_be_the_cursor_of_a_list_by_name(site: WireSite) -> None:
    await site.enqueue_in_each_state("m")
    for cursor, found in (
        ("", ["m"]),
        ("\0", ["m"]),
        ("l" * 4_000, ["m"]),
        ("m", []),
        (PEEK_CURSOR, ["m"]),
        ("😀", []),
    ):
        page = ttypes.Page(5, cursor)
        request = ttypes.GetActiveTopicsRequest(site.namespace, page=page)
        assert [stats.topic for stats in (await site.call("getActiveTopics", request)).success.topics] == found
        assert await site.outcome("listNamespaces", ttypes.ListRequest(page)) == OK


@pytest.mark.parametrize("method", ["listDead", "bulk"])
def test_cursor_on_a_missing_shard_is_beyond_the_end(method: str) -> None:
    async def story() -> None:
        async with fake_wire() as site:
            await site.enqueue_in_each_state("t")
            before = await site.all()
            page = ttypes.Page(5, WALK_CURSOR.replace(":0:", ":65535:", 1))
            request = good(method, Names(site.namespace, "t"))
            request.page = page
            assert await site.outcome(method, request) == OK
            assert await site.all() == before

    run(story())
