"""Tests the administrative calls, from the client over RPC to the administration and back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from random import Random
from typing import Any, Final

import pytest

from foqs.catalog.administration import Administration
from foqs.catalog.document import Document, Permission, parse
from foqs.catalog.memory_catalog import MemoryCatalog
from foqs.catalog.namespace_deletion import DirectDeletions
from foqs.catalog.namespace_settings import SETTING_RANGES
from foqs.catalog.namespaces import Namespaces
from foqs.core.groups.group_rules import Fairness, GroupRules
from foqs.core.limits.whole_limit import WholeLimits
from foqs.queue.backlogs import Backlogs
from foqs.queue.quota import Quota
from foqs.rpc.admin_handlers import admin_handlers
from foqs.shard.host_shards import HostShards
from foqs_client import (
    Client,
    FoqsError,
    Grant,
    InvalidArgument,
    LimitExceeded,
    Namespace,
    NamespaceNotFound,
    NotImplementedYet,
    TopicPolicy,
    UnknownOutcome,
    Usage,
)
from foqs_client.admin_calls import AdminCalls
from foqs_contract.idl import ttypes
from tests.support.aio import run
from tests.support.fake_queue import LIMITS, SETTINGS, FakeQueue
from tests.support.raw_calls import call_once
from tests.support.rpc_server import serve_queue

NOW_MS: Final = 1_700_000_000_000


class Configured:
    """An administration without shards, and its client."""

    def __init__(self) -> None:
        self.catalog = MemoryCatalog()
        self.namespaces = Namespaces(SETTINGS, "gold")
        quota = Quota({}, Backlogs({}), WholeLimits(lambda: 0.0), lambda: 0.0)
        self.admin = Administration(
            self.catalog,
            self.namespaces,
            HostShards(),
            LIMITS.timeout_ms_max,
            quota,
            1 << 21,
            lambda topics: None,
            DirectDeletions(),
            self.find_older_hosts,
            Random(1),
        )
        self.older_hosts: list[str] = []
        self.client: Client
        self.host: Any

    async def find_older_hosts(self, documents: int) -> list[str]:
        """Return the hosts that the test plays, which read documents of format 1 only."""
        return self.older_hosts if documents > 1 else []

    async def raw(self, name: str, request: Any) -> Any:
        """Return the reply to a request that the client would not send."""
        return await call_once(self.client, name, request)


@asynccontextmanager
async def configured() -> AsyncIterator[Configured]:
    found = Configured()
    await found.admin.open()
    calls = admin_handlers(found.admin, "gold", lambda: NOW_MS)
    async with serve_queue(FakeQueue(), calls=calls) as host, Client(host.url) as client:
        found.client, found.host = client, host
        yield found


def test_an_item_may_name_an_end_of_its_key_a_minute_before_the_window_ends() -> None:
    async def main() -> None:
        async with configured() as found:
            await found.client.create_namespace(Namespace("shop", key_window_ms=600_000))
            async with Client(found.host.url, namespace="shop") as client:
                assert await client.keys_until_ms() == NOW_MS + 540_000
            async with Client(found.host.url, namespace="none") as client:
                with pytest.raises(NamespaceNotFound):
                    await client.keys_until_ms()

    run(main())


def test_each_incarnation_of_a_namespace_has_another_number() -> None:
    async def main() -> None:
        async with configured() as found, Client(found.host.url, namespace="shop") as client:
            numbers = []
            for _ in range(2):
                await found.client.create_namespace(Namespace("shop"))
                numbers += [await client.incarnation(), await client.incarnation()]
                await found.client.delete_namespace("shop")
            assert numbers[0] == numbers[1] != numbers[2] == numbers[3]
            assert await found.client.incarnation() > 0

    run(main())


def test_every_setting_is_stored_and_returned() -> None:
    async def main() -> None:
        async with configured() as found:
            client = found.client
            values: dict[str, Any] = {name: (low + high) // 2 + 1 for name, (low, high) in SETTING_RANGES.items()}
            values |= {"payload_bytes_max": 1_000, "lease_ms_default": 5, "backoff_ms_min": 6}
            made = await client.create_namespace(Namespace("é ", **values))
            assert made == Namespace("é ", tier="gold", **values) == await client.get_namespace("é ")
            assert found.catalog.document.namespaces["é "].settings == values
            changed = await client.update_namespace(Namespace("é ", weight=7))
            assert changed == Namespace("é ", tier="gold", **{**values, "weight": 7})

    run(main())


def test_unset_settings_show_the_defaults_of_the_host() -> None:
    async def main() -> None:
        async with configured() as found:
            shown = await found.client.get_namespace()
            assert (shown.name, shown.lease_ms_default, shown.weight) == ("default", SETTINGS.lease_ms_default, 1)
            assert shown.backlog_items_max == 0

    run(main())


def test_namespaces_are_listed_in_pages_by_name() -> None:
    async def main() -> None:
        async with configured() as found:
            for name in ("c", "a", "b"):
                await found.client.create_namespace(Namespace(name))
            page = await found.client.list_namespaces(limit=3)
            assert ([one.name for one in page.namespaces], page.next_cursor) == (["a", "b", "c"], "c")
            page = await found.client.list_namespaces(limit=3, cursor=page.next_cursor)
            assert ([one.name for one in page.namespaces], page.next_cursor) == (["default"], None)
            await found.client.delete_namespace("b")
            assert len((await found.client.list_namespaces()).namespaces) == 3

    run(main())


def test_grants_are_set_listed_and_revoked() -> None:
    async def main() -> None:
        async with configured() as found:
            client = found.client
            await client.set_grant("mailer", ["consume", "enqueue"])
            await client.set_grant("boss", ["admin"])
            assert await client.grants() == [
                Grant("boss", "default", ("admin",)),
                Grant("mailer", "default", ("enqueue", "consume")),
            ]
            assert found.namespaces.permissions_of("boss", "default") == {Permission.ADMIN}
            await client.set_grant("boss", [])
            assert [grant.principal for grant in await client.grants("default")] == ["mailer"]

    run(main())


def test_policies_of_topics_are_set_listed_and_removed() -> None:
    async def main() -> None:
        async with configured() as found:
            client = found.client
            assert await client.topic_policies() == []
            await client.set_topic_policy(TopicPolicy("orders", 1))
            await client.set_topic_policy(TopicPolicy("mail", 1_000))
            await client.set_topic_policy(TopicPolicy("orders", 3))
            assert await client.topic_policies() == [TopicPolicy("mail", 1_000), TopicPolicy("orders", 3)]
            assert found.namespaces.group_rules == {
                ("default", "orders"): GroupRules(3),
                ("default", "mail"): GroupRules(1_000),
            }
            before = found.namespaces.group_rules
            await client.pause_topic("mail")
            assert found.namespaces.group_rules is before  # else each owner would look at all its topics
            await client.set_topic_policy(TopicPolicy("orders"))
            await client.set_topic_policy(TopicPolicy("orders"))
            assert await client.topic_policies() == [TopicPolicy("mail", 1_000)]
            await client.set_topic_policy(TopicPolicy("mail"))
            assert '"format": 1' in await client.export_config()

    run(main())


def test_policy_with_turns_is_stored_and_returned() -> None:
    async def main() -> None:
        async with configured() as found:
            client = found.client
            policies = [TopicPolicy("a", fair="items"), TopicPolicy("b", 2, "time", {"Ada": 3, "é ": 100})]
            for policy in policies:
                await client.set_topic_policy(policy)
            assert await client.topic_policies() == policies
            assert found.namespaces.group_rules == {
                ("default", "a"): GroupRules(None, Fairness.ITEMS),
                ("default", "b"): GroupRules(2, Fairness.TIME, {"Ada": 3, "é ": 100}),
            }
            assert found.namespaces.fairness(("default", "b")) is Fairness.TIME
            assert found.namespaces.group_leases_max(("default", "a")) is None
            assert '"format": 2' in await client.export_config()
            await client.set_topic_policy(TopicPolicy("b", 2))
            assert await client.topic_policies() == [policies[0], TopicPolicy("b", 2)]
            await client.set_topic_policy(TopicPolicy("b", order="relaxed"))
            assert await client.topic_policies() == [policies[0], TopicPolicy("b", order="relaxed")]
            assert found.namespaces.relaxed_topics == {("default", "b")}
            assert found.namespaces.group_leases_max(("default", "b")) is None
            with pytest.raises(InvalidArgument, match="relaxed, or leave it out"):
                await client.set_topic_policy(TopicPolicy("a", order="exact"))
            await client.set_topic_policy(TopicPolicy("b"))
            assert not found.namespaces.relaxed_topics
            await client.set_topic_policy(TopicPolicy("a"))
            assert await client.topic_policies() == []

    run(main())


def test_a_policy_is_refused_while_an_older_host_would_not_keep_it() -> None:
    async def main() -> None:
        async with configured() as found:
            client = found.client
            found.older_hosts = ["east-1"]
            with pytest.raises(NotImplementedYet, match="east-1"):
                await client.set_topic_policy(TopicPolicy("orders", 1))
            with pytest.raises(NotImplementedYet, match="east-1"):
                await client.import_config(
                    '{"format": 2, "version": 1, "namespaces": {"default": {"policies": {"t": {"group_leases_max": 1}}}}}'
                )
            assert await client.topic_policies() == []
            await client.pause_topic("orders")
            found.older_hosts = []
            await client.set_topic_policy(TopicPolicy("orders", 1))
            assert '"format": 2' in await client.export_config()
            found.older_hosts = ["east-1"]  # it has started since, and takes no shard over
            await client.set_topic_policy(TopicPolicy("mail", 1))
            await client.import_config(await client.export_config())
            assert len(await client.topic_policies()) == 2

    run(main())


def weighted(weights: Mapping[str, int]) -> TopicPolicy:
    return TopicPolicy("t", fair="items", weights=weights)


def twice_weighted() -> ttypes.SetTopicPolicyRequest:
    weights = [ttypes.GroupWeight("a", 1), ttypes.GroupWeight("a", 2)]
    policy = ttypes.TopicPolicy("t", None, ttypes.Fairness.ITEMS, weights)
    return ttypes.SetTopicPolicyRequest("default", policy)


def test_a_host_that_joins_while_a_policy_is_stored_is_reported() -> None:
    async def main() -> None:
        async with configured() as found:
            stored = found.catalog.replace

            async def replace(document: Document, expected: Document | None = None) -> None:
                await stored(document, expected)
                found.older_hosts = ["late"]

            found.catalog.replace = replace  # type: ignore[method-assign]
            with pytest.raises(UnknownOutcome, match="late"):
                await found.client.set_topic_policy(TopicPolicy("orders", 1))
            assert await found.client.topic_policies() == [TopicPolicy("orders", 1)]

    run(main())


def test_topics_are_paused_and_resumed() -> None:
    async def main() -> None:
        async with configured() as found:
            await found.client.pause_topic("mail")
            await found.client.pause_topic("mail")
            assert found.namespaces.paused_topics == {("default", "mail")}
            await found.client.resume_topic("mail")
            assert not found.namespaces.paused_topics

    run(main())


def test_export_can_be_imported() -> None:
    async def main() -> None:
        async with configured() as found:
            client = found.client
            await client.create_namespace(Namespace("orders", weight=3))
            text = await client.export_config()
            namespaces = json.loads(text)["namespaces"]
            assert namespaces["orders"].pop("incarnation") > 0
            assert namespaces == {"default": {}, "orders": {"tier": "gold", "settings": {"weight": 3}}}
            await client.delete_namespace("orders")
            await client.import_config(text)
            assert (await client.get_namespace("orders")).weight == 3
            assert parse(await client.export_config()).version > parse(text).version

    run(main())


def test_usage_of_an_empty_namespace_is_zero() -> None:
    async def main() -> None:
        async with configured() as found:
            assert await found.client.usage() == Usage(items=0, bytes=0, topics=0, enqueues_last_minute=0)

    run(main())


@pytest.mark.parametrize(
    ("call", "kind", "field"),
    [
        (lambda f: f.client.create_namespace(Namespace("")), InvalidArgument, "settings.name"),
        (lambda f: f.client.create_namespace(Namespace("a\0")), InvalidArgument, "settings.name"),
        (lambda f: f.client.create_namespace(Namespace("a", weight=0)), InvalidArgument, "settings.weight"),
        (lambda f: f.client.create_namespace(Namespace("a", weight=9_999)), LimitExceeded, "settings.weight"),
        (lambda f: f.client.create_namespace(Namespace("a", tier="tin")), InvalidArgument, "settings.tier"),
        (lambda f: f.client.create_namespace(Namespace("default", weight=9)), InvalidArgument, "settings.name"),
        (lambda f: f.client.update_namespace(Namespace("none", weight=1)), NamespaceNotFound, "settings.name"),
        (lambda f: f.client.get_namespace("none"), NamespaceNotFound, "namespace_name"),
        (lambda f: f.client.get_namespace(""), InvalidArgument, "namespace_name"),
        (lambda f: f.client.delete_namespace("none"), NamespaceNotFound, "namespace_name"),
        (lambda f: f.client.usage("none"), NamespaceNotFound, "namespace_name"),
        (lambda f: f.client.list_namespaces(limit=0), InvalidArgument, "page.limit"),
        (lambda f: f.client.set_grant("", ["admin"]), InvalidArgument, "grant.principal"),
        (lambda f: f.client.set_grant("p", ["own"]), InvalidArgument, "permissions"),
        (lambda f: f.client.set_grant("p", [], "none"), NamespaceNotFound, "grant.namespace_name"),
        (lambda f: f.client.pause_topic("x" * 256), InvalidArgument, "topic"),
        (lambda f: f.client.set_topic_policy(TopicPolicy("", 1)), InvalidArgument, "policy.topic"),
        (lambda f: f.client.set_topic_policy(TopicPolicy("t", 0)), InvalidArgument, "policy.group_leases_max"),
        (lambda f: f.client.set_topic_policy(TopicPolicy("t", 1_001)), LimitExceeded, "policy.group_leases_max"),
        (lambda f: f.client.set_topic_policy(TopicPolicy("t", fair="all")), InvalidArgument, "policy.fair"),
        (lambda f: f.client.set_topic_policy(TopicPolicy("t", 1, weights={"a": 1})), InvalidArgument, "policy.weights"),
        (lambda f: f.client.set_topic_policy(weighted({"a": 0})), InvalidArgument, "policy.weights[0].weight"),
        (lambda f: f.client.set_topic_policy(weighted({"a": 1, "b": 101})), LimitExceeded, "policy.weights[1].weight"),
        (lambda f: f.client.set_topic_policy(weighted({"": 1})), InvalidArgument, "policy.weights[0].group"),
        (
            lambda f: f.client.set_topic_policy(weighted(dict.fromkeys(map(str, range(101)), 1))),
            LimitExceeded,
            "policy.weights",
        ),
        (lambda f: f.raw("setTopicPolicy", twice_weighted()), InvalidArgument, "policy.weights[1].group"),
        (lambda f: f.raw("setTopicPolicy", ttypes.SetTopicPolicyRequest("default")), InvalidArgument, "policy"),
        (lambda f: f.client.import_config("{"), InvalidArgument, "json"),
        (lambda f: f.raw("createNamespace", ttypes.SetNamespaceRequest()), InvalidArgument, "settings"),
        (lambda f: f.raw("setGrant", ttypes.GrantRequest()), InvalidArgument, "grant"),
        (
            lambda f: f.raw("setGrant", ttypes.GrantRequest(ttypes.Grant("p", "default"))),
            InvalidArgument,
            "grant.permissions",
        ),
        (
            lambda f: f.raw("setGrant", ttypes.GrantRequest(ttypes.Grant("p", "default", [1, 4]))),
            InvalidArgument,
            "grant.permissions[1]",
        ),
        (lambda f: f.raw("importConfig", ttypes.ConfigDocument()), InvalidArgument, "json"),
        (lambda f: f.raw("pauseTopic", ttypes.TopicRequest("default")), InvalidArgument, "topic"),
    ],
)
def test_error_of_a_bad_call_names_the_field_and_nothing_is_changed(
    call: Callable[[Configured], Coroutine[Any, Any, Any]], kind: type[FoqsError], field: str
) -> None:
    async def main() -> None:
        async with configured() as found:
            before = await found.catalog.load()
            with pytest.raises(kind) as caught:
                await call(found)
            assert caught.value.field == field
            assert await found.catalog.load() is before

    run(main())


def test_parallel_calls_are_all_made() -> None:
    async def main() -> None:
        async with configured() as found:
            await asyncio.gather(*(found.client.pause_topic(f"t{number}") for number in range(50)))
            assert len(found.namespaces.paused_topics) == 50

    run(main())


def test_every_call_of_the_client_is_documented() -> None:
    for name, call in vars(AdminCalls).items():
        if not name.startswith("_"):
            assert call.__doc__, name
