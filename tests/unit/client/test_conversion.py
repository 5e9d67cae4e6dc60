"""Tests the client's calls on existing items, by id and by filter, over a real connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from foqs.core.items.item import State
from foqs.core.items.item_filter import ItemFilter as CoreFilter
from foqs.core.items.life import Event, EventKind
from foqs_client import BulkPage, Change, Client, InvalidArgument, Item, ItemCount, ItemFilter, NotFound
from tests.support.aio import run
from tests.support.fake_queue import FakeQueue
from tests.support.rpc_server import serve_queue


def test_items_are_changed_and_redriven_by_id() -> None:
    async def main() -> None:
        queue = FakeQueue()
        async with serve_queue(queue) as host, Client(host.url) as client:
            [id_] = [result.require() for result in await client.enqueue([Item("t")])]
            number = int(id_.partition("-")[2])
            [done, missing] = await client.update([id_, "3-8796093099999"], Change(5, delay_ms=0, metadata=b"m"))
            done.require()
            with pytest.raises(NotFound):
                missing.require()
            [done] = await client.redrive([id_])
            done.require()
            events = [event for name, details in queue.calls if name == "apply" for _, event in cast(Any, details)]
            assert events[0] == Event(EventKind.UPDATE, number, "default", delay_ms=0, metadata=b"m", priority=5)
            assert events[2] == Event(EventKind.REDRIVE, number, "default")

    run(main())


def test_items_are_counted_and_changed_by_filter_page_by_page() -> None:
    async def main() -> None:
        queue = FakeQueue()
        async with serve_queue(queue) as host, Client(host.url) as client:
            await client.enqueue([Item("t", b"xy")] * 3)
            only = ItemFilter("t", ["ready", "dead"], 0, 9, age_min_ms=0)
            assert await client.count(only) == ItemCount(3, 6)
            assert await client.update_matching(only, Change(deliver_after_ms=7), 1) == BulkPage(1, 0, None, "more")
            assert await client.cancel_matching(only, cursor="more") == BulkPage(2, 0, None, None)
            await client.redrive_matching(ItemFilter())
            core = CoreFilter("t", (State.READY, State.DEAD), 0, 9, 0)
            assert [details for name, details in queue.calls if name == "bulk"] == [
                (Event(EventKind.UPDATE, 0, "default", deliver_after_ms=7), core, None, 1),
                (Event(EventKind.CANCEL, 0, "default"), core, "more", 1_000),
                (Event(EventKind.REDRIVE, 0, "default"), CoreFilter(states=(State.DEAD,)), None, 1_000),
            ]

    run(main())


def test_dead_items_are_listed() -> None:
    async def main() -> None:
        queue = FakeQueue()
        async with serve_queue(queue) as host, Client(host.url) as client:
            await client.enqueue([Item("t", b"one"), Item("u", b"two", attempts_max=4)])
            for row in queue.rows.values():
                row.state, row.attempt = State.DEAD, 4
            page = await client.dead(limit=1)
            assert [(view.state, view.payload, view.dead_reason) for view in page.items] == [
                ("dead", None, "given up by its consumer in attempt 4")
            ]
            assert page.next_cursor == "more"
            page = await client.dead("u", with_payload=True)
            assert [(view.topic, view.payload) for view in page.items] == [("u", b"two")]
            assert "attempts exhausted" in (page.items[0].dead_reason or "")

    run(main())


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.count(ItemFilter(states=["asleep"])),
        lambda client: client.update(["3-8796093022209"], Change()),
        lambda client: client.update(["3-8796093022209"], Change(metadata=cast(bytes, "text"))),
        lambda client: client.cancel_matching(ItemFilter(priority_min=2, priority_max=1)),
        lambda client: client.redrive_matching(ItemFilter(states=["ready"])),
    ],
)
def test_wrong_argument_is_refused(call: Callable[[Client], Any]) -> None:
    async def main() -> None:
        async with serve_queue(FakeQueue()) as host, Client(host.url) as client:
            with pytest.raises(InvalidArgument):
                await call(client)

    run(main())


def test_purge_returns_the_number_of_items() -> None:
    async def main() -> None:
        queue = FakeQueue()
        async with serve_queue(queue) as host, Client(host.url) as client:
            await client.enqueue([Item("t"), Item("t"), Item("u")])
            assert await client.purge_topic("t") == 2
            assert await client.purge_topic("t") == 0
            assert [details for name, details in queue.calls if name == "purge"] == ["t", "t"]

    run(main())
