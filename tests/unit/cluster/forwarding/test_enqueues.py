"""Forwarded enqueues: every rule and race of "Several hosts serve as one", under virtual time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from foqs.cluster.peers import REPLY_MARGIN_S
from foqs_client import (
    FoqsError,
    InvalidArgument,
    Item,
    NotImplementedYet,
    NotOwner,
    Overloaded,
    PermissionDenied,
    Unavailable,
    UnknownOutcome,
)
from foqs_contract import errors
from foqs_contract.call_table import FIRST_VERSION
from foqs_contract.idl import ttypes
from foqs_contract.thrift_method import ThriftMethod
from tests.simulation import principals
from tests.support.enqueue_tier import GRACE_S, PORT, EnqueueTier, EnqueueTierHost, in_tier, send
from tests.support.poll import soon
from tests.support.raw_calls import call_once

ENQUEUE = ThriftMethod("enqueue")
FULL = errors.Overloaded("the queue is full", retry_after_ms=70)
OPEN = errors.Unavailable("its breaker is open", retry_after_ms=70)


def all_of_it(error: errors.FoqsError) -> Callable[[EnqueueTierHost], None]:
    """The call as a whole."""

    def refuse(host: EnqueueTierHost) -> None:
        host.queue.failure = error

    return refuse


def each_item(error: errors.FoqsError) -> Callable[[EnqueueTierHost], None]:
    """The host refuses single items, as it does with items that wait when the breaker opens."""

    def refuse(host: EnqueueTierHost) -> None:
        host.queue.refusal = lambda item: error

    return refuse


@pytest.mark.parametrize("refuse", [all_of_it(FULL), all_of_it(OPEN), each_item(FULL), each_item(OPEN)])
def test_item_that_a_host_refuses_is_accepted_by_another(refuse: Callable[[EnqueueTierHost], None]) -> None:
    async def story(tier: EnqueueTier) -> None:
        alpha, beta = await tier.host("alpha"), await tier.host("beta")
        refuse(alpha)
        client = await tier.client(alpha)
        results = await send(client, Item("t", b"1"), Item("t", b"2"))
        assert all(result.require() for result in results)
        assert (alpha.items, beta.items) == ([], [b"1", b"2"])

    in_tier(story)


def test_locally_accepted_item_is_not_forwarded() -> None:
    async def story(tier: EnqueueTier) -> None:
        alpha, beta = await tier.host("alpha"), await tier.host("beta")
        await send(await tier.client(alpha), Item("t", b"1"), Item("t", b"2", idempotency_key="k"))
        assert (alpha.items, beta.asked) == ([b"1", b"2"], {})

    in_tier(story)


def test_item_that_may_be_written_is_not_forwarded() -> None:
    async def story(tier: EnqueueTier) -> None:
        alpha, beta = await tier.host("alpha"), await tier.host("beta")
        each_item(errors.UnknownOutcome("who knows"))(alpha)
        [result] = await send(await tier.client(alpha), Item("t", b"1"))
        assert isinstance(result.error, UnknownOutcome)
        assert beta.asked == {}

    in_tier(story)


@pytest.mark.parametrize("error", [errors.RateLimited("slow down"), errors.LimitExceeded("too many")])
def test_item_refused_by_namespace_limits_is_not_forwarded(error: errors.FoqsError) -> None:
    async def story(tier: EnqueueTier) -> None:
        alpha, beta = await tier.host("alpha"), await tier.host("beta")
        all_of_it(error)(alpha)
        with pytest.raises(FoqsError, match=error.message):
            await send(await tier.client(alpha), Item("t", b"1"))
        assert beta.asked == {}

    in_tier(story)


def test_keyed_item_reaches_the_owner_of_its_slot_from_any_host() -> None:
    async def story(tier: EnqueueTier) -> None:
        alpha, beta, gamma = [await tier.host(name) for name in ("alpha", "beta", "gamma")]
        tier.owners["k"] = ("beta", PORT)
        for host in (alpha, gamma):
            host.queue.accept_only()
            client = await tier.client(host)
            [result] = await send(client, Item("t", b"1", idempotency_key="k"))
            assert result.require()
        assert (len(alpha.items), len(beta.items), len(gamma.items)) == (0, 1, 0)  # the key names one item

    in_tier(story)


def test_item_with_a_group_reaches_the_owner_of_its_group_from_any_host() -> None:
    async def story(tier: EnqueueTier) -> None:
        alpha, beta, gamma = [await tier.host(name) for name in ("alpha", "beta", "gamma")]
        tier.owners["g"] = ("beta", PORT)
        for host in (alpha, gamma):
            host.queue.accept_only()
            client = await tier.client(host)
            results = await send(client, Item("t", b"1", group="g"), Item("t", b"2", group="g", idempotency_key="k"))
            assert all(result.require() for result in results)
        assert (alpha.items, gamma.items) == ([], [])
        assert beta.items[:2] == [b"1", b"2"]
        assert beta.asked == {("enqueue", True): 2}

    in_tier(story)


def test_a_mixed_batch_is_split_and_answered_in_order() -> None:
    async def story(tier: EnqueueTier) -> None:
        alpha, beta, gamma = [await tier.host(name) for name in ("alpha", "beta", "gamma")]
        tier.owners.update(b=("beta", PORT), b2=("beta", PORT), c=("gamma", PORT))
        alpha.queue.accept_only("a")
        c, a, b, b2 = [Item("t", key.encode(), idempotency_key=key) for key in ("c", "a", "b", "b2")]
        results = await send(await tier.client(alpha), c, Item("", b"no topic"), a, b, b2)
        assert [result.error is None for result in results] == [True, False, True, True, True]
        assert results[1].error is not None
        assert results[1].error.field == "items[1].topic"
        assert (alpha.items, beta.items, gamma.items) == ([b"a"], [b"b", b"b2"], [b"c"])
        assert beta.asked == {("enqueue", True): 1}

    in_tier(story)


def test_peer_error_names_the_item_by_its_place_in_the_call() -> None:
    async def story(tier: EnqueueTier) -> None:
        alpha, beta = await tier.host("alpha"), await tier.host("beta")
        tier.owners["k"] = ("beta", PORT)
        alpha.queue.accept_only()
        beta.queue.refusal = lambda item: errors.InvalidArgument("it will not do", field="items[0].priority")
        [_, result] = await send(await tier.client(alpha), Item("t", b"1"), Item("t", b"2", idempotency_key="k"))
        assert isinstance(result.error, InvalidArgument)
        assert result.error.field == "items[1].priority"

    in_tier(story)


@pytest.fixture
def older_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make all hosts serve the first version of the contract, and clients send newer fields nevertheless."""
    monkeypatch.setattr("foqs.rpc.auth_session.CONTRACT_VERSION", FIRST_VERSION)
    monkeypatch.setattr("foqs_client.routed_calls.CONTRACT_VERSION", 0)


@pytest.mark.usefixtures("older_hosts")
def test_owner_of_an_older_version_gets_the_items_that_it_knows() -> None:

    async def story(tier: EnqueueTier) -> None:
        alpha, beta = await tier.host("alpha"), await tier.host("beta")
        tier.owners.update(a=("beta", PORT), b=("beta", PORT))
        alpha.queue.accept_only()
        known, newer = await send(
            await tier.client(alpha),
            Item("t", b"known", idempotency_key="b"),
            Item("t", b"newer", idempotency_key="a", trace_context=b"x"),
        )
        assert isinstance(newer.error, NotImplementedYet)
        assert newer.error.field == "items[1].trace_context"
        assert newer.error.message.startswith("beta serves version 1 of the contract")
        assert known.require()
        assert beta.items == [b"known"]
        assert beta.asked == {("enqueue", True): 1}

    in_tier(story)


@pytest.mark.usefixtures("older_hosts")
def test_item_that_no_peer_knows_gets_the_error_of_the_called_host() -> None:
    async def story(tier: EnqueueTier) -> None:
        alpha, beta = await tier.host("alpha"), await tier.host("beta")
        each_item(FULL)(alpha)
        client = await tier.client(alpha)
        [newer] = await send(client, Item("t", b"newer", trace_context=b"x"))
        assert isinstance(newer.error, Overloaded)
        [known] = await send(client, Item("t", b"known"))
        assert known.require()
        assert beta.items == [b"known"]

    in_tier(story)


def test_refusal_of_a_slot_owner_is_returned() -> None:
    async def story(tier: EnqueueTier) -> None:
        alpha, beta = await tier.host("alpha"), await tier.host("beta")
        tier.owners["k"] = ("beta", PORT)
        alpha.queue.accept_only()
        all_of_it(OPEN)(beta)
        [result] = await send(await tier.client(alpha), Item("t", b"1", idempotency_key="k"))
        assert isinstance(result.error, Unavailable)
        assert result.error.retry_after_ms == 70

    in_tier(story)


def test_keyed_item_is_not_forwarded_to_an_unknown_owner() -> None:
    async def story(tier: EnqueueTier) -> None:
        alpha, beta = await tier.host("alpha"), await tier.host("beta")
        tier.owners["k"] = ("delta", PORT)
        alpha.queue.accept_only()
        [result] = await send(await tier.client(alpha), Item("t", b"1", idempotency_key="k"))
        assert isinstance(result.error, NotOwner)
        assert result.error.owner == ("delta", PORT)
        assert beta.asked == {}

    in_tier(story)


def test_keyed_item_is_forwarded_only_to_the_owner_of_its_slot() -> None:
    async def story(tier: EnqueueTier) -> None:
        alpha, beta = await tier.host("alpha"), await tier.host("beta")
        all_of_it(FULL)(alpha)
        with pytest.raises(Overloaded):
            await send(await tier.client(alpha), Item("t", b"1", idempotency_key="k"))
        [keyed, bare] = await send(await tier.client(alpha), Item("t", b"2", idempotency_key="k"), Item("t", b"3"))
        assert isinstance(keyed.error, Overloaded)
        assert bare.require()
        assert beta.items == [b"3"]

    in_tier(story)


def test_unreachable_peer_is_skipped_for_the_next(caplog: pytest.LogCaptureFixture) -> None:
    async def story(tier: EnqueueTier) -> None:
        alpha = await tier.host("alpha")
        await tier.host("beta", listens=False)
        gamma = await tier.host("gamma")
        all_of_it(FULL)(alpha)
        client = await tier.client(alpha)
        for number in range(6):
            [result] = await send(client, Item("t", b"%d" % number))
            assert result.require()
        assert len(gamma.items) == 6

    in_tier(story)
    assert [each.getMessage().partition(":")[0] for each in caplog.records if each.name == "foqs.cluster.peers"] == [
        "host beta cannot be called"
    ]


def test_local_refusal_is_returned_if_no_peer_is_reached() -> None:
    async def story(tier: EnqueueTier) -> None:
        alpha = await tier.host("alpha")
        await tier.host("beta", listens=False)
        tier.owners["k"] = ("beta", PORT)
        all_of_it(FULL)(alpha)
        with pytest.raises(Overloaded, match="the queue is full") as caught:
            await send(await tier.client(alpha), Item("t", b"1"))
        assert caught.value.retry_after_ms == 70
        alpha.queue.failure = None
        alpha.queue.accept_only()
        [result] = await send(await tier.client(alpha), Item("t", b"1", idempotency_key="k"))
        assert isinstance(result.error, NotOwner)

    in_tier(story)


@pytest.mark.parametrize("refuse", [all_of_it(FULL), all_of_it(OPEN), each_item(FULL), each_item(OPEN)])
def test_item_that_the_first_peer_refuses_is_accepted_by_the_next(refuse: Callable[[EnqueueTierHost], None]) -> None:
    async def story(tier: EnqueueTier) -> None:
        alpha, beta, gamma = [await tier.host(name) for name in ("alpha", "beta", "gamma")]
        all_of_it(FULL)(alpha)
        client = await tier.client(alpha)
        alpha.peers.by_nonce[gamma.view.nonce].load = 1.0  # so beta is asked first
        refuse(beta)
        for payload in (b"1", b"2"):
            results = await send(client, Item("t", payload), Item("t", payload))
            assert all(result.require() for result in results)
        assert (beta.items, gamma.items) == ([], [b"1", b"1", b"2", b"2"])
        assert beta.asked["enqueue", True] == 1  # and left alone for a while

    in_tier(story)


def test_only_refused_items_are_sent_to_the_next_peer() -> None:
    async def story(tier: EnqueueTier) -> None:
        alpha, beta, gamma = [await tier.host(name) for name in ("alpha", "beta", "gamma")]
        all_of_it(FULL)(alpha)
        alpha.peers.by_nonce[gamma.view.nonce].load = 1.0
        refusals = {b"1": None, b"2": FULL, b"3": errors.LimitExceeded("too many"), b"4": OPEN}
        beta.queue.refusal = lambda item: refusals[item.payload]
        results = await send(await tier.client(alpha), *(Item("t", payload) for payload in refusals))
        assert (beta.items, gamma.items) == ([b"1"], [b"2", b"4"])
        assert [result.error is None for result in results] == [True, True, False, True]

    in_tier(story)


def test_peers_that_refuse_are_asked_once_and_then_skipped_for_a_while() -> None:
    async def story(tier: EnqueueTier) -> None:
        hosts = [await tier.host(name) for name in ("alpha", "beta", "gamma")]
        all_of_it(FULL)(hosts[0])
        for host in hosts[1:]:
            all_of_it(errors.Overloaded("full here too", retry_after_ms=1))(host)
        client = await tier.client(hosts[0])
        for asked in (2, 2, 2):
            with pytest.raises(Overloaded, match="the queue is full"):
                await send(client, Item("t", b"1"))
            assert sum(host.asked["enqueue", True] for host in hosts) == asked
        await asyncio.sleep(1)
        with pytest.raises(Overloaded):
            await send(client, Item("t", b"1"))
        assert sum(host.asked["enqueue", True] for host in hosts) == 4

    in_tier(story)


def test_forwarded_item_without_a_reply_is_unknown_and_not_sent_again() -> None:
    async def story(tier: EnqueueTier) -> None:
        alpha, beta, gamma = [await tier.host(name) for name in ("alpha", "beta", "gamma")]
        all_of_it(FULL)(alpha)
        for host in (beta, gamma):
            host.queue.refusal = lambda item: abort_connections(tier, "alpha", "beta", "gamma")
        [result] = await send(await tier.client(alpha), Item("t", b"1"))
        assert isinstance(result.error, UnknownOutcome)
        assert len(beta.items) + len(gamma.items) == 1

    in_tier(story)


def test_keyed_retry_of_a_client_resolves_an_unknown_outcome() -> None:
    async def story(tier: EnqueueTier) -> None:
        alpha, beta = await tier.host("alpha"), await tier.host("beta")
        tier.owners["k"] = ("beta", PORT)
        alpha.queue.accept_only()
        is_first = iter([True])
        beta.queue.refusal = lambda item: abort_connections(tier, "alpha", "beta") if next(is_first, False) else None
        client = await tier.client(alpha)
        [result] = await client.enqueue([Item("t", b"1", idempotency_key="k")])
        assert result.require()
        assert result.repeated
        assert (len(beta.items), beta.asked["enqueue", True]) == (1, 2)

    in_tier(story)


def test_item_missing_in_a_peer_s_reply_has_an_unknown_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(tier: EnqueueTier) -> None:
        alpha, beta = await tier.host("alpha"), await tier.host("beta")
        all_of_it(FULL)(alpha)
        call = alpha.peers.call

        async def cut_short(*args: Any) -> Any:
            reply = await call(*args)
            del reply.results[1:]
            return reply

        monkeypatch.setattr(alpha.peers, "call", cut_short)
        first, second = await send(await tier.client(alpha), Item("t", b"1"), Item("t", b"2"))
        assert first.require()
        assert isinstance(second.error, UnknownOutcome)
        assert len(beta.items) == 2

    in_tier(story)


def test_forwarded_call_is_not_forwarded_again() -> None:
    async def story(tier: EnqueueTier) -> None:
        alpha, beta, gamma = [await tier.host(name) for name in ("alpha", "beta", "gamma")]
        tier.owners["k"] = ("beta", PORT)
        alpha.queue.accept_only()
        beta.queue.owners = {"k": ("gamma", PORT)}  # the plan that alpha knows is old
        beta.queue.accept_only()
        [result] = await send(await tier.client(alpha), Item("t", b"1", idempotency_key="k"))
        assert isinstance(result.error, NotOwner)
        assert result.error.owner == ("gamma", PORT)
        assert (beta.asked["enqueue", True], gamma.asked) == (1, {})
        for host in (alpha, beta):
            all_of_it(FULL)(host)
        tier.change(gamma, drained=True)  # alpha would not choose it
        with pytest.raises(Overloaded):
            await send(await tier.client(alpha), Item("t", b"2"))
        tier.change(gamma, drained=False)
        assert (beta.asked["enqueue", True], gamma.asked) == (2, {})

    in_tier(story)


def test_only_an_administrator_may_mark_a_call_as_forwarded() -> None:
    async def story(tier: EnqueueTier) -> None:
        alpha, beta = await tier.host("alpha"), await tier.host("beta")
        all_of_it(FULL)(alpha)
        request = ttypes.EnqueueRequest("default", [ttypes.NewItem("t", payload=b"1")], forwarded=True)
        tenant = await tier.client(alpha, token=principals.token(principals.PRODUCER))
        with pytest.raises(PermissionDenied) as caught:
            await call_once(tenant, "enqueue", request, 1_000)
        assert caught.value.field == "forwarded"
        administrator = await tier.client(alpha)
        with pytest.raises(Overloaded):  # the mark is accepted, so no other host is asked
            await call_once(administrator, "enqueue", request, 1_000)
        assert beta.asked == {}
        [result] = await send(tenant, Item("t", b"1"))
        assert result.require()

    in_tier(story, gated=True)


@pytest.mark.parametrize("token", [principals.token(principals.PRODUCER), "a wrong one"])
def test_host_that_peers_do_not_accept_forwards_nothing_and_logs_it(
    token: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(tier: EnqueueTier) -> None:
        alpha, beta = await tier.host("alpha", token=token), await tier.host("beta")
        tier.owners["k"] = ("beta", PORT)
        all_of_it(FULL)(alpha)
        client = await tier.client(alpha)
        for _ in range(2):
            with pytest.raises(Overloaded, match="the queue is full"):
                await send(client, Item("t", b"1"))
            await asyncio.sleep(2)
        alpha.queue.failure = None
        alpha.queue.accept_only()
        [result] = await send(client, Item("t", b"1", idempotency_key="k"))
        assert isinstance(result.error, NotOwner)
        assert beta.items == []
        assert alpha.peers.by_address(("beta", PORT)).unreachable_reason  # type: ignore[union-attr]

    in_tier(story, gated=True)
    said = [each.getMessage() for each in caplog.records if each.name == "foqs.cluster.peers"]
    assert len(said) == 1
    assert said[0].startswith("host beta cannot be called: ")
    assert token not in caplog.text


def test_peer_that_accepts_this_host_later_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "foqs.cluster.peers")

    async def story(tier: EnqueueTier) -> None:
        alpha, beta = await tier.host("alpha"), await tier.host("beta", listens=False)
        all_of_it(FULL)(alpha)
        client = await tier.client(alpha)
        with pytest.raises(Overloaded):
            await send(client, Item("t", b"1"))
        await tier.network.listen("beta", PORT, beta.server.connection)
        await asyncio.sleep(2)
        [result] = await send(client, Item("t", b"1"))
        assert result.require()

    in_tier(story)
    said = [each.getMessage() for each in caplog.records if each.name == "foqs.cluster.peers"]
    assert [each.partition(":")[0] for each in said] == ["host beta cannot be called", "host beta answers calls again"]


def test_forwarded_items_may_be_written_after_the_caller_left() -> None:
    async def story(tier: EnqueueTier) -> None:
        alpha, beta = await tier.host("alpha"), await tier.host("beta")
        all_of_it(FULL)(alpha)
        beta.queue.gate = asyncio.Event()
        client = await tier.client(alpha)
        sending = asyncio.ensure_future(send(client, Item("t", b"1")))
        await soon(lambda: beta.queue.running == 1)
        abort_connections(tier, "alpha", "client")
        await asyncio.gather(sending, return_exceptions=True)
        await soon(lambda: not alpha.server.calls_in_flight)
        assert not [task for task in asyncio.all_tasks() if "_pass_on" in repr(task)]
        beta.queue.gate.set()
        await soon(lambda: beta.items == [b"1"])
        assert alpha.server.byte_budget.reserved_bytes == 0

    in_tier(story)


def test_forwarded_call_ends_by_its_deadline() -> None:
    async def story(tier: EnqueueTier) -> None:
        alpha, beta = await tier.host("alpha"), await tier.host("beta")
        all_of_it(FULL)(alpha)
        beta.queue.gate = asyncio.Event()
        client = await tier.client(alpha)
        begun = asyncio.get_running_loop().time()
        [result] = await send(client, Item("t", b"1"), timeout_ms=1_000)
        assert isinstance(result.error, UnknownOutcome)
        took_s = asyncio.get_running_loop().time() - begun
        assert took_s <= 1.0 + GRACE_S
        assert beta.times == [pytest.approx(1_000 - REPLY_MARGIN_S * 1_000, abs=10)]
        beta.queue.gate.set()

    in_tier(story)


def test_call_without_remaining_time_is_not_forwarded() -> None:
    async def story(tier: EnqueueTier) -> None:
        alpha, beta = await tier.host("alpha"), await tier.host("beta")
        all_of_it(FULL)(alpha)
        client = await tier.client(alpha)
        [result] = await send(client, Item("t", b"1"))  # a connection is there
        assert result.require()
        with pytest.raises(Overloaded):
            await send(client, Item("t", b"1"), timeout_ms=int(REPLY_MARGIN_S * 1_000))
        assert beta.asked["enqueue", True] == 1

    in_tier(story)


def test_host_without_peers_serves_the_call_alone() -> None:
    async def story(tier: EnqueueTier) -> None:
        alpha = await tier.host("alpha")
        all_of_it(FULL)(alpha)
        with pytest.raises(Overloaded):
            await send(await tier.client(alpha), Item("t", b"1"))

    in_tier(story)


def test_unkeyed_items_of_a_lost_shard_are_forwarded() -> None:
    async def story(tier: EnqueueTier) -> None:
        alpha, beta, gamma = [await tier.host(name) for name in ("alpha", "beta", "gamma")]
        each_item(errors.NotOwner("lost", owner=("beta", PORT)))(alpha)
        tier.change(beta, leaving=True)
        client = await tier.client(alpha)
        [result] = await send(client, Item("t", b"1"))
        assert result.require()
        assert gamma.items == [b"1"]

    in_tier(story)


def abort_connections(tier: EnqueueTier, *hosts: str) -> None:
    """Breaks the connections between these."""
    for connection in tier.network.connections():
        if set(connection.hosts) <= set(hosts):
            tier.network.cut(connection)
