"""The client's call that completes items: the places in its errors are those of the caller's lists."""

from __future__ import annotations

from typing import Any

from foqs.testing import FakeHost
from foqs_client import Client, Completion, InvalidArgument, Item
from tests.support.consumer_stories import play

SHARDS = {"store.shards": 4}


def test_error_names_the_bad_item_by_its_places_in_the_callers_lists() -> None:
    async def story(fake: FakeHost, client: Client) -> None:
        await client.enqueue([Item("t")] * 3)
        leases = await client.dequeue({"t": 3})
        then = [[Item("u")], [Item("u"), Item("u")], [Item("u"), Item("")]]
        results = await client.complete(list(map(Completion, leases, then)))
        assert [result.error and result.error.field for result in results] == [
            None,
            None,
            "completions[2].items[1].topic",
        ]
        [twice] = (await client.complete([Completion(leases[2], [Item("u")])] * 2))[1:]
        assert twice.error is not None
        assert twice.error.field == "completions[1].id"

    play(story)


def test_places_count_from_the_callers_list_if_hosts_get_parts_of_it() -> None:
    async def story(fake: FakeHost, client: Client) -> None:
        await client.enqueue([Item("t")] * 4)
        leases = await client.dequeue({"t": 4})
        call, places = client._call, {lease.id: place for place, lease in enumerate(leases)}

        async def only_host(method: Any, request: Any, timeout_ms: int, host: Any) -> Any:
            return await call(method, request, timeout_ms, None)

        client._call = only_host  # type: ignore[assignment, method-assign]
        client.owner = lambda id: ("host", places[id] % 2)  # type: ignore[method-assign]
        then = [[Item("u")], [Item("u")], [Item("u"), Item("u")], [Item("u"), Item("u"), Item("")]]
        results = await client.complete(list(map(Completion, leases, then)))
        assert [result.error and result.error.field for result in results[:3]] == [None] * 3
        assert results[3].error is not None
        assert results[3].error.field == "completions[3].items[2].topic"

    play(story)


def test_followers_of_the_items_own_group_pass_on_several_shards_and_of_another_shard_are_refused() -> None:
    async def story(fake: FakeHost, client: Client) -> None:
        groups = [f"g{number}" for number in range(16)]
        await client.enqueue([Item("t", group=group) for group in groups])
        leases = await client.dequeue({"t": 16})
        assert len(leases) == 16
        other = [Completion(lease, [Item("u"), Item("u", group="g0")]) for lease in leases]
        refused: set[str] = set()
        for place, (lease, result) in enumerate(zip(leases, await client.complete(other), strict=True)):
            if result.error is not None:
                assert isinstance(result.error, InvalidArgument)
                assert result.error.field == f"completions[{place}].items[1].group"
                both = f"completions[{place}].id and completions[{place}].items[1].group belong to different shards"
                assert both in result.error.message
                refused.add(lease.id)
        assert 0 < len(refused) < 16
        own = [Completion(lease, [Item("u", group=lease.group)]) for lease in leases if lease.id in refused]
        assert [result.error for result in await client.complete(own)] == [None] * len(own)

    play(story, SHARDS)
