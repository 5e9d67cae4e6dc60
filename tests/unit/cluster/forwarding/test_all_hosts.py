"""The audit at one of three hosts: it lists the changes at all hosts, and names those that do not report."""

from __future__ import annotations

import pytest

from foqs.rpc.in_host_calls import InHostCalls
from foqs_contract.call_table import FIRST_VERSION
from foqs_contract.errors import InvalidArgument, LimitExceeded
from foqs_contract.idl import ttypes
from tests.support.rpc_tier import RpcTierWorld, run_rpc_tier


def test_changes_at_all_hosts_are_listed_newest_first_each_once() -> None:
    async def story(world: RpcTierWorld) -> None:
        hosts = await world.three()
        for host, topic in zip(hosts, ("a", "b", "c"), strict=True):
            await world.ask(host, "pauseTopic", ttypes.TopicRequest("default", topic))
            await world.pass_s(1)
        await world.ask(hosts[0], "purgeTopic", ttypes.TopicRequest("default", "a"))
        for host in hosts:
            reply = await world.ask(host, "listAudit", ttypes.ListAuditRequest())
            assert [(entry.host, entry.call, entry.target) for entry in reply.entries] == [
                ("one", "purgeTopic", "topic=a"),
                ("three", "pauseTopic", "topic=c"),
                ("two", "pauseTopic", "topic=b"),
                ("one", "pauseTopic", "topic=a"),
            ]
            assert {entry.outcome for entry in reply.entries} == {"OK"}
            assert reply.missing_hosts is None

    run_rpc_tier(story)


def test_entries_are_limited_and_filtered_by_namespace() -> None:
    async def story(world: RpcTierWorld) -> None:
        one, two, _ = await world.three()
        settings = ttypes.NamespaceSettings("shop")
        await world.ask(two, "createNamespace", ttypes.SetNamespaceRequest(settings))
        for topic in ("a", "b"):
            await world.pass_s(1)
            await world.ask(one, "pauseTopic", ttypes.TopicRequest("default", topic))
            await world.ask(two, "pauseTopic", ttypes.TopicRequest("shop", topic))
        reply = await world.ask(one, "listAudit", ttypes.ListAuditRequest(1, "shop"))
        assert [(entry.host, entry.namespace_name, entry.target) for entry in reply.entries] == [
            ("two", "shop", "topic=b")
        ]
        for limit, error in ((0, InvalidArgument), (1_001, LimitExceeded)):
            with pytest.raises(error):
                await world.ask(one, "listAudit", ttypes.ListAuditRequest(limit))

    run_rpc_tier(story)


def test_host_that_does_not_answer_is_named() -> None:
    async def story(world: RpcTierWorld) -> None:
        one, two, _ = await world.three()
        await world.ask(two, "pauseTopic", ttypes.TopicRequest("default", "b"))
        await world.deafen("three")
        reply = await world.ask(one, "listAudit", ttypes.ListAuditRequest())
        assert [entry.host for entry in reply.entries] == ["two"]
        assert reply.missing_hosts == ["three"]

    run_rpc_tier(story)


def test_host_of_an_older_version_is_not_asked_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foqs.rpc.auth_session.CONTRACT_VERSION", FIRST_VERSION)

    async def story(world: RpcTierWorld) -> None:
        one, two, _ = await world.three()
        for host in (one, two):
            await world.ask(host, "pauseTopic", ttypes.TopicRequest("default", "t"))
        calls = InHostCalls(world.services["one"], 0.2)
        reply = await calls.call("listAudit", ttypes.ListAuditRequest(), 5.0, None)
        assert [entry.host for entry in reply.entries] == ["one"]
        assert sorted(reply.missing_hosts) == ["three", "two"]

    run_rpc_tier(story)
