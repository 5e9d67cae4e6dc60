"""The peers of a host: which they are, in which order they are asked, and over which connection."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import cast

import pytest

from foqs.cluster.peers import CONNECT_TIMEOUT_S, SUSPECT_S, PeerUnreachable
from foqs.rpc.call import ServerMethod
from foqs_contract.call_table import CALLS, FIRST_VERSION
from foqs_contract.contract_version import CONTRACT_VERSION, HostTooOld
from foqs_contract.errors import Unauthenticated, Unavailable
from foqs_contract.idl import ttypes
from foqs_contract.method_table import METHODS
from foqs_contract.thrift_method import ThriftMethod
from tests.support.enqueue_tier import PORT, EnqueueTier, in_tier, names

ENQUEUE = ThriftMethod("enqueue")
PEEK = ThriftMethod("peek")


def test_hosts_of_another_tier_and_this_one_are_no_peers() -> None:
    async def story(tier: EnqueueTier) -> None:
        alpha = await tier.host("alpha")
        await tier.host("beta", listens=False)
        await tier.host("elsewhere", listens=False, tier="gold")
        assert list(alpha.peers.by_nonce) == ["nonce-beta"]
        assert alpha.peers.by_nonce is alpha.peers.by_nonce
        assert alpha.peers.by_address(("elsewhere", PORT)) is None

    in_tier(story)


def test_a_host_that_came_back_is_another_peer() -> None:
    async def story(tier: EnqueueTier) -> None:
        alpha, beta = await tier.host("alpha"), await tier.host("beta")
        [before] = alpha.peers.by_nonce.values()
        tier.change(beta, drained=True)
        [still] = alpha.peers.by_nonce.values()
        assert still is before
        assert still.view.drained
        tier.change(beta, nonce="another run")
        [after] = alpha.peers.by_nonce.values()
        assert after is not before

    in_tier(story)


@pytest.mark.parametrize("change", [{"drained": True}, {"leaving": True}])
def test_draining_hosts_are_not_enqueue_candidates(change: dict[str, bool]) -> None:
    async def story(tier: EnqueueTier) -> None:
        alpha, beta = await tier.host("alpha"), await tier.host("beta")
        gamma = await tier.host("gamma")
        tier.change(beta, **change)
        assert names(alpha.peers.enqueue_candidates()) == ["gamma"]
        alpha.peers.by_nonce[gamma.view.nonce].can_accept_items = False
        assert alpha.peers.enqueue_candidates() == []

    in_tier(story)


def test_peer_that_refused_is_skipped_for_a_while() -> None:
    async def story(tier: EnqueueTier) -> None:
        alpha = await tier.host("alpha")
        await tier.host("beta")
        [beta] = alpha.peers.enqueue_candidates()
        alpha.peers.mark_suspect(beta)
        assert alpha.peers.enqueue_candidates() == []
        await asyncio.sleep(SUSPECT_S * 1.1)
        assert alpha.peers.enqueue_candidates() == [beta]

    in_tier(story)


def test_hosts_of_the_same_region_come_first() -> None:
    async def story(tier: EnqueueTier) -> None:
        alpha = await tier.host("alpha", region="west")
        await tier.host("beta", region="east")
        await tier.host("gamma", region="west", load=9_000.0)
        for _ in range(4):
            assert names(alpha.peers.enqueue_candidates()) == ["gamma", "beta"]

    in_tier(story)


def test_loaded_host_is_asked_last_and_its_load_is_spread_over_the_others() -> None:
    async def story(tier: EnqueueTier) -> None:
        alpha = await tier.host("alpha")
        for name, load in (("busy", 900.0), ("idle", 0.0), ("calm", 1.0), ("slow", 2.0)):
            await tier.host(name, load=load)
        first = Counter(names(alpha.peers.enqueue_candidates())[0] for _ in range(400))
        assert first["busy"] == 0
        assert all(first[name] <= 200 for name in first)
        assert len(first) >= 2

    in_tier(story)


def test_load_is_relative_to_the_capacity_of_a_host() -> None:
    async def story(tier: EnqueueTier) -> None:
        alpha = await tier.host("alpha")
        await tier.host("large", load=30.0, capacity=10)
        await tier.host("small", load=20.0)
        assert {names(alpha.peers.enqueue_candidates())[0] for _ in range(4)} == {"large"}

    in_tier(story)


def test_calls_to_a_peer_share_a_connection_which_ends_when_the_peer_is_gone() -> None:
    async def story(tier: EnqueueTier) -> None:
        alpha, beta = await tier.host("alpha"), await tier.host("beta")
        [peer] = alpha.peers.by_nonce.values()
        deadline = asyncio.get_running_loop().time() + 5
        request = ttypes.EnqueueRequest("default", [ttypes.NewItem("t", payload=b"1")], forwarded=True)
        await asyncio.gather(*(alpha.peers.call(peer, ENQUEUE, request, deadline) for _ in range(5)))
        assert (len(beta.items), len(tier.network.connections("beta"))) == (5, 1)
        assert request.timeout_ms is None
        tier.hosts.remove(beta)
        tier.views = [alpha.view]
        assert not alpha.peers.by_nonce
        await asyncio.sleep(0.1)
        assert tier.network.connections("beta") == []

    in_tier(story)


def test_lost_connection_is_opened_again() -> None:
    async def story(tier: EnqueueTier) -> None:
        alpha, beta = await tier.host("alpha"), await tier.host("beta")
        [peer] = alpha.peers.by_nonce.values()
        request = ttypes.EnqueueRequest("default", [ttypes.NewItem("t", payload=b"1")], forwarded=True)
        for _ in range(2):
            await alpha.peers.call(peer, ENQUEUE, request, asyncio.get_running_loop().time() + 5)
            for connection in tier.network.connections("beta"):
                tier.network.cut(connection)
            await asyncio.sleep(0.1)
        assert len(beta.items) == 2

    in_tier(story)


def test_a_peer_behind_a_partition_is_not_waited_for() -> None:
    async def story(tier: EnqueueTier) -> None:
        alpha = await tier.host("alpha")
        await tier.host("beta")
        [peer] = alpha.peers.by_nonce.values()
        tier.network.partition("beta")
        loop = asyncio.get_running_loop()
        begun = loop.time()
        with pytest.raises(PeerUnreachable):
            await alpha.peers.call(peer, PEEK, ttypes.PeekRequest("default", "t"), begun + 60)
        assert loop.time() - begun <= CONNECT_TIMEOUT_S + 0.1
        tier.network.heal()

    in_tier(story)


def test_unanswered_read_is_unavailable() -> None:
    async def story(tier: EnqueueTier) -> None:
        alpha, beta = await tier.host("alpha"), await tier.host("beta")
        [peer] = alpha.peers.by_nonce.values()
        beta.queue.gate = asyncio.Event()
        deadline = asyncio.get_running_loop().time() + 1
        with pytest.raises(Unavailable) as caught:
            await alpha.peers.call(peer, PEEK, ttypes.PeekRequest("default", "t"), deadline)
        assert not isinstance(caught.value, PeerUnreachable)
        beta.queue.gate.set()

    in_tier(story)


def test_hosts_begin_with_different_peers() -> None:
    async def story(tier: EnqueueTier) -> None:
        hosts = [await tier.host(f"host{number}") for number in range(12)]
        asked = Counter(names(host.peers.enqueue_candidates())[0] for host in hosts)
        assert max(asked.values()) <= 5

    in_tier(story)


def test_new_address_of_a_host_replaces_the_old_one() -> None:
    async def story(tier: EnqueueTier) -> None:
        alpha, beta = await tier.host("alpha"), await tier.host("beta")
        [peer] = alpha.peers.by_nonce.values()
        beta.view = replace(beta.view, address=("delta", PORT))
        tier.change(beta)
        assert alpha.peers.by_address(("delta", PORT)) is peer
        assert alpha.peers.by_address(("beta", PORT)) is None

    in_tier(story)


def test_newly_announced_load_replaces_the_reported_one() -> None:
    async def story(tier: EnqueueTier) -> None:
        alpha, beta = await tier.host("alpha"), await tier.host("beta", load=4_096.0)
        [peer] = alpha.peers.by_nonce.values()
        assert peer.load == 4_096
        peer.load = 3_000.0  # as reported by gossip
        tier.change(beta, drained=True)
        assert (alpha.peers.by_nonce["nonce-beta"].load, peer.view.drained) == (3_000, True)
        tier.change(beta, load=0.0)
        assert alpha.peers.by_nonce["nonce-beta"].load == 0

    in_tier(story)


def test_call_that_a_peer_does_not_know_had_no_effect() -> None:
    async def story(tier: EnqueueTier) -> None:
        alpha, beta = await tier.host("alpha"), await tier.host("beta")
        [peer] = alpha.peers.by_nonce.values()
        beta.server.methods_by_prefix.clear()
        del cast(dict[bytes, ServerMethod], beta.server.service.methods)[b"purgeTopic"]
        with pytest.raises(HostTooOld, match="beta does not know the call purgeTopic"):
            await alpha.peers.call(peer, ThriftMethod("purgeTopic"), ttypes.TopicRequest("default", "t"), deadline())

    in_tier(story)


def test_newer_call_is_not_sent_to_a_peer_of_an_older_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foqs.rpc.auth_session.CONTRACT_VERSION", FIRST_VERSION)
    newer = replace(METHODS["peek"], row=replace(CALLS["peek"], since=CONTRACT_VERSION))
    monkeypatch.setitem(METHODS, "peek", newer)
    peek = ThriftMethod("peek")

    async def story(tier: EnqueueTier) -> None:
        alpha, beta = await tier.host("alpha"), await tier.host("beta")
        [peer] = alpha.peers.by_nonce.values()
        with pytest.raises(
            HostTooOld, match="beta serves version 1 of the contract, and the call peek is of version 2"
        ):
            await alpha.peers.call(peer, peek, ttypes.PeekRequest("default", "t"), deadline())
        assert beta.asked == {}

    in_tier(story)


def test_a_peer_that_does_not_accept_this_host_was_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The question for its version is refused before the call."""

    async def refuse(*_: object) -> None:
        raise Unauthenticated("a token is missing")

    monkeypatch.setattr("foqs.cluster.peers.check_served", refuse)
    monkeypatch.setattr("foqs.cluster.peers.CONTRACT_VERSION", CONTRACT_VERSION + 1)

    async def story(tier: EnqueueTier) -> None:
        alpha, _ = await tier.host("alpha"), await tier.host("beta")
        [peer] = alpha.peers.by_nonce.values()
        request = ttypes.EnqueueRequest("default", [ttypes.NewItem("t", payload=b"1")], forwarded=True)
        with pytest.raises(PeerUnreachable, match="not accept this host as an administrator: a token is missing"):
            await alpha.peers.call(peer, ENQUEUE, request, deadline())

    in_tier(story)


def deadline() -> float:
    return asyncio.get_running_loop().time() + 3.0
