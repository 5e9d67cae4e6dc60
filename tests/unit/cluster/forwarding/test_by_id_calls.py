"""Calls by id at a host that does not own the item's shard."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from foqs.core.items.item import State, format_id
from foqs.rpc.in_host_calls import InHostCalls
from foqs_contract.call_table import FIRST_VERSION
from foqs_contract.errors import NotFound, NotOwner
from foqs_contract.idl import ttypes
from tests.support.builders import changed
from tests.support.cluster_world import ClusterHost
from tests.support.rpc_tier import RpcTierWorld, run_rpc_tier

CODE = ttypes.ErrorCode


def codes(reply: Any) -> list[int | None]:
    return [None if outcome.error is None else outcome.error.code for outcome in reply.outcomes]


def states(world: RpcTierWorld) -> list[State]:
    return [row.state for table in world.database.tables.values() for row in table.rows.values()]


def lease_ends(world: RpcTierWorld) -> dict[str, int | None]:
    """Return when the lease of each item ends, by id."""
    tables = world.database.tables.items()
    return {format_id(shard, row.id): row.due_ms for shard, table in tables for row in table.rows.values()}


async def leases(world: RpcTierWorld, hosts: list[ClusterHost]) -> list[tuple[str, int]]:
    """An item of every shard, leased by its own host: (id, token)."""
    await world.put(hosts)
    delivered = [seen for host in hosts for seen in (await host.caller.get("t", 100)).items]
    return [(format_id(seen.shard, seen.row.id), seen.row.token) for seen in delivered]


def test_any_host_accepts_acks_for_all_shards() -> None:
    async def story(world: RpcTierWorld) -> None:
        hosts = await world.three()
        held = await leases(world, hosts)
        request = ttypes.AckRequest("default", [ttypes.Lease(*each) for each in held])
        assert codes(await world.ask(hosts[0], "ack", request)) == [None] * 8
        assert states(world) == []
        again = await world.ask(hosts[1], "ack", request)
        assert [outcome.already_gone for outcome in again.outcomes] == [True] * 8

    run_rpc_tier(story)


def test_any_host_serves_changes_by_id() -> None:
    async def story(world: RpcTierWorld) -> None:
        hosts = await world.three()
        held = await leases(world, hosts)
        one, two, three = hosts
        ids = [id for id, _ in held]
        extended = ttypes.ExtendLeaseRequest("default", [ttypes.Extension(*each, 50_000) for each in held])
        assert codes(await world.ask(one, "extendLease", extended)) == [None] * 8
        held_longer = ttypes.ExtendHeldLeasesRequest("default", ids, 70_000)
        assert codes(await world.ask(two, "extendHeldLeases", held_longer)) == [None] * 8
        dead = ttypes.NackRequest("default", [ttypes.Nack(*each, dead=True) for each in held])
        assert codes(await world.ask(two, "nack", dead)) == [None] * 8
        assert states(world) == [State.DEAD] * 8
        assert codes(await world.ask(three, "redrive", ttypes.RedriveRequest("default", ids))) == [None] * 8
        assert states(world) == [State.READY] * 8
        assert codes(await world.ask(two, "extendHeldLeases", held_longer)) == [CODE.STALE_LEASE] * 8
        put_off = ttypes.UpdateRequest("default", ids, ttypes.Change(delay_ms=60_000))
        assert codes(await world.ask(one, "update", put_off)) == [None] * 8
        assert states(world) == [State.DEFERRED] * 8
        assert codes(await world.ask(two, "cancel", ttypes.CancelRequest("default", ids))) == [None] * 8
        assert states(world) == []

    run_rpc_tier(story)


def test_older_owner_is_not_asked_to_extend_a_lease_without_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foqs.rpc.auth_session.CONTRACT_VERSION", FIRST_VERSION)

    async def story(world: RpcTierWorld) -> None:
        hosts = await world.three()
        held = await leases(world, hosts)
        before = lease_ends(world)
        calls = InHostCalls(world.services["one"], 0.2)
        request = ttypes.ExtendHeldLeasesRequest(b"default", [id.encode() for id, _ in held], 900_000)
        outcomes = codes(await calls.call("extendHeldLeases", request, 5.0, None))
        own = {id for id, _ in held if int(id.split("-")[0]) in hosts[0].engine.shards}
        assert outcomes == [None if id in own else CODE.NOT_IMPLEMENTED for id, _ in held]
        assert 0 < len(own) < 8
        after = lease_ends(world)
        assert {id for id in before if after[id] != before[id]} == own

    run_rpc_tier(story)


def test_any_host_moves_items_of_all_shards_and_repeats_the_ids() -> None:
    async def story(world: RpcTierWorld) -> None:
        hosts = await world.three()
        ids = sorted(await world.put(hosts))
        request = ttypes.MoveItemsRequest("default", [*ids, "7-nonsense"], "u")
        *moved, bad = (await world.ask(hosts[0], "moveItems", request)).outcomes
        assert bad.error.field == "ids[8]"
        assert [each.id.split("-")[0] for each in moved] == [id.split("-")[0] for id in ids]
        again = (await world.ask(hosts[1], "moveItems", request)).outcomes
        assert [(each.id, each.repeated) for each in again[:-1]] == [(each.id, True) for each in moved]
        assert {row.topic for table in world.database.tables.values() for row in table.rows.values()} == {"u"}

    run_rpc_tier(story)


def test_any_host_completes_items_of_all_shards_and_repeats_the_ids() -> None:
    async def story(world: RpcTierWorld) -> None:
        hosts = await world.three()
        held = await leases(world, hosts)
        own_key = f"~{min(hosts[0].engine.shards[min(hosts[0].engine.shards)].key_slots):03x}key"
        completions: list[Any] = [ttypes.Completion(*each, 2) for each in held]
        items = [ttypes.NewItem("u") for _ in held for _ in range(2)]
        foreign = next(each for each in completions if int(each.id.split("-")[0]) not in hosts[0].engine.shards)
        items[2 * completions.index(foreign) + 1] = ttypes.NewItem("u", idempotency_key=own_key)
        request = ttypes.CompleteRequest("default", completions, items=items)
        outcomes = (await world.ask(hosts[0], "complete", request)).outcomes
        place = completions.index(foreign)
        refused = outcomes[place].error
        assert (refused.code, refused.field) == (
            CODE.INVALID_ARGUMENT,
            f"items[{2 * place + 1}].idempotency_key",
        )
        assert f"completions[{place}].id and items[{2 * place + 1}].idempotency_key" in refused.message
        done = {each.id: outcome.ids for each, outcome in zip(completions, outcomes, strict=True) if outcome.ids}
        assert len(done) == 7
        assert all({new.split("-")[0] for new in ids} == {id.split("-")[0]} for id, ids in done.items())
        again = (await world.ask(hosts[1], "complete", request)).outcomes
        assert [(outcome.ids, outcome.repeated) for outcome in again if outcome.ids] == [
            (ids, True) for ids in done.values()
        ]
        topics = Counter(row.topic for table in world.database.tables.values() for row in table.rows.values())
        assert topics["u"] == 14
        assert sum(topics.values()) == 15

    run_rpc_tier(story)


def test_any_host_restores_items_of_all_slots_and_repeats_the_ids() -> None:
    async def story(world: RpcTierWorld) -> None:
        hosts = await world.three()
        items = [ttypes.RestoredItem("t", payload=b"%d" % place, restore_key=f"run-{place}") for place in range(40)]
        request = ttypes.RestoreItemsRequest("default", [*items, ttypes.RestoredItem("t")])
        *restored, bad = (await world.ask(hosts[0], "restoreItems", request)).results
        assert bad.error.field == "items[40].restore_key"
        assert len({each.id for each in restored}) == 40
        assert len({each.id.split("-")[0] for each in restored}) > 4
        again = (await world.ask(hosts[2], "restoreItems", request)).results
        assert [(each.id, each.repeated) for each in again[:-1]] == [(each.id, True) for each in restored]
        assert len(states(world)) == 40

    run_rpc_tier(story)


def test_any_host_releases_leases() -> None:
    async def story(world: RpcTierWorld) -> None:
        hosts = await world.three()
        held = await leases(world, hosts)
        request = ttypes.ReleaseRequest("default", [ttypes.Lease(*each) for each in held])
        assert codes(await world.ask(hosts[2], "release", request)) == [None] * 8
        assert states(world) == [State.READY] * 8

    run_rpc_tier(story)


def test_each_entry_has_its_outcome_at_its_own_place() -> None:
    async def story(world: RpcTierWorld) -> None:
        hosts = await world.three()
        held = dict(await leases(world, hosts))
        here, there = min(hosts[0].is_serving()), min(hosts[1].is_serving())
        by_shard = {int(id.split("-")[0]): id for id in held}
        mine, other = by_shard[here], by_shard[there]
        nacks = [
            ttypes.Nack(mine, held[mine]),
            ttypes.Nack("x", 1),
            ttypes.Nack(other, held[other], delay_ms=-1),
            ttypes.Nack(by_shard[min(hosts[2].is_serving())], 1),
        ]
        reply = await world.ask(hosts[0], "nack", ttypes.NackRequest("default", nacks))
        assert codes(reply) == [None, CODE.INVALID_ARGUMENT, CODE.INVALID_ARGUMENT, CODE.STALE_LEASE]
        assert reply.outcomes[1].error.field == "nacks[1].id"
        assert reply.outcomes[2].error.field == "nacks[2].delay_ms"

    run_rpc_tier(story)


def test_error_of_the_owner_names_the_entry_by_its_place_in_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: RpcTierWorld) -> None:
        one, two, _ = hosts = await world.three()
        held = await leases(world, hosts)
        settings = changed(two.engine.queue.namespace_settings("default"), metadata_bytes_max=1)
        monkeypatch.setattr(two.engine.queue, "namespace_settings", lambda name: settings)
        nacks = [ttypes.Nack(*each, metadata=b"more") for each in held]
        reply = await world.ask(one, "nack", ttypes.NackRequest("default", nacks))
        theirs = [int(id.split("-")[0]) in two.is_serving() for id, _ in held]
        assert codes(reply) == [CODE.LIMIT_EXCEEDED if their else None for their in theirs]
        fields = [outcome.error and outcome.error.field for outcome in reply.outcomes]
        assert fields == [f"nacks[{place}].metadata" if their else None for place, their in enumerate(theirs)]

    run_rpc_tier(story)


def test_an_item_is_shown_and_explained_by_any_host() -> None:
    async def story(world: RpcTierWorld) -> None:
        hosts = await world.three()
        for id in await world.put(hosts):
            for host in hosts:
                view = await world.ask(host, "getItem", ttypes.GetItemRequest("default", id, True))
                assert (view.id, view.payload) == (id, b"payload")
                assert (await world.ask(host, "explain", ttypes.GetItemRequest("default", id))).item.id == id
        gone = f"{min(hosts[1].is_serving())}-{(1 << 43) + 1}"
        with pytest.raises(NotFound):
            await world.ask(hosts[0], "getItem", ttypes.GetItemRequest("default", gone))

    run_rpc_tier(story)


def test_items_of_a_shard_are_listed_by_any_host() -> None:
    async def story(world: RpcTierWorld) -> None:
        hosts = await world.three()
        ids = set(await world.put(hosts))
        shards = {number for host in hosts for number in host.is_serving()}
        for host in hosts:
            listed = [
                view.id
                for shard in shards
                for view in (await world.ask(host, "listItems", ttypes.ListItemsRequest("default", shard=shard))).items
            ]
            assert len(listed) == len(ids)
            assert set(listed) == ids
        with pytest.raises(NotOwner):
            await world.ask(hosts[0], "listItems", ttypes.ListItemsRequest("default", shard=max(shards) + 1))

    run_rpc_tier(story)


def test_caller_gets_the_owner_s_address_if_it_is_unreachable() -> None:
    async def story(world: RpcTierWorld) -> None:
        one, two, _ = hosts = await world.three()
        held = await leases(world, hosts)
        await world.deafen("two")
        for each in held:
            shard = int(each[0].split("-")[0])
            if shard in two.is_serving():
                reply = await world.ask(one, "ack", ttypes.AckRequest("default", [ttypes.Lease(*each)]))
                assert codes(reply) == [CODE.NOT_OWNER]
                assert reply.outcomes[0].error.owner.host == "two.example"
                with pytest.raises(NotOwner) as caught:
                    await world.ask(one, "getItem", ttypes.GetItemRequest("default", each[0]))
                assert caught.value.owner == ("two.example", 7411)

    run_rpc_tier(story)


def test_lost_reply_makes_only_its_own_entries_unknown() -> None:
    async def story(world: RpcTierWorld) -> None:
        one, two, _ = hosts = await world.three()
        held = await leases(world, hosts)
        theirs = [int(id.split("-")[0]) in two.is_serving() for id, _ in held]
        # This opens a connection whose other end then stops replying.
        await world.ask(one, "countItems", ttypes.CountItemsRequest("default", ttypes.ItemFilter("t")))
        world.network.partition("two.example")
        request = ttypes.AckRequest("default", [ttypes.Lease(*each) for each in held])
        reply = await world.ask(one, "ack", request, timeout_s=2)
        assert codes(reply) == [CODE.UNKNOWN_OUTCOME if their else None for their in theirs]

    run_rpc_tier(story)


def test_call_is_forwarded_once() -> None:
    async def story(world: RpcTierWorld) -> None:
        hosts = await world.three()
        held = await leases(world, hosts)
        request = ttypes.AckRequest("default", [ttypes.Lease(*each) for each in held], forwarded=True)
        reply = await world.ask(hosts[0], "ack", request)
        theirs = [int(id.split("-")[0]) not in hosts[0].is_serving() for id, _ in held]
        assert codes(reply) == [CODE.NOT_OWNER if their else None for their in theirs]

    run_rpc_tier(story)


def test_hosts_that_name_each_other_as_owner_do_not_forward_in_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: RpcTierWorld) -> None:
        one, two, three = hosts = await world.three()
        held = [each for each in await leases(world, hosts) if int(each[0].split("-")[0]) in three.is_serving()]
        monkeypatch.setattr(one.tier, "owner_of", lambda shard: ("two.example", 7411))
        monkeypatch.setattr(two.tier, "owner_of", lambda shard: ("one.example", 7411))
        request = ttypes.AckRequest("default", [ttypes.Lease(*each) for each in held])
        assert codes(await world.ask(one, "ack", request)) == [CODE.NOT_OWNER] * len(held)
        with pytest.raises(NotOwner):
            await world.ask(one, "getItem", ttypes.GetItemRequest("default", held[0][0]))

    run_rpc_tier(story)
