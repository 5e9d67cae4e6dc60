"""Forwarded atomic calls: as a whole, to one peer at a time, with one error."""

from __future__ import annotations

from typing import Any

import pytest

from foqs_client import Client, Enqueued, Item, KeyConflict, NotOwner, Overloaded, Unavailable, UnknownOutcome
from foqs_contract import errors
from tests.support.enqueue_tier import PORT, EnqueueTier, in_tier

FULL = errors.Overloaded("the queue is full", retry_after_ms=70)


async def send(client: Client, *items: Item, timeout_ms: int = 3_000) -> list[Enqueued]:
    """Make one attempt. Raises the FoqsError of the call."""
    return await client._send_known_items_to(None, items, timeout_ms, atomic=True)


def keyed(*keys: str) -> list[Item]:
    return [Item("t", key.encode(), idempotency_key=key) for key in keys]


def test_refused_call_is_forwarded_as_a_whole_to_one_peer_after_the_other() -> None:
    async def story(tier: EnqueueTier) -> None:
        alpha, *others = [await tier.host(name) for name in ("alpha", "beta", "gamma")]
        alpha.queue.refusal = lambda item: FULL if item.payload == b"2" else None
        others[0].queue.failure = FULL
        client = await tier.client(alpha)
        results = await send(client, Item("t", b"1"), Item("t", b"2"))
        assert all(result.require() for result in results)
        assert (alpha.items, others[0].items, others[1].items) == ([], [], [b"1", b"2"])
        assert sum(host.queue.atomic_calls for host in others) >= 1
        others[1].queue.failure = FULL
        with pytest.raises(Overloaded):
            await send(client, Item("t", b"2"))

    in_tier(story)


def test_call_with_keys_is_forwarded_to_the_owner_of_its_slot_only() -> None:
    async def story(tier: EnqueueTier) -> None:
        alpha, beta, gamma = [await tier.host(name) for name in ("alpha", "beta", "gamma")]
        tier.owners.update(a=("beta", PORT), b=("beta", PORT), c=("nobody", PORT))
        alpha.queue.accept_only()
        client = await tier.client(alpha)
        results = await send(client, *keyed("a", "b"))
        assert all(result.require() for result in results)
        assert (alpha.items, beta.items) == ([], [b"a", b"b"])
        beta.queue.refusal = lambda item: errors.KeyConflict("no", field="items[1].idempotency_key")
        with pytest.raises(KeyConflict) as caught:
            await send(client, *keyed("a", "b"))
        assert caught.value.field == "items[1].idempotency_key"
        beta.queue.refusal = lambda item: FULL
        with pytest.raises(Overloaded):
            await send(client, *keyed("a", "b"))
        with pytest.raises(NotOwner):
            await send(client, *keyed("c"))
        assert gamma.asked == {}

    in_tier(story)


def test_call_with_a_group_is_forwarded_to_the_owner_of_the_group_only() -> None:
    async def story(tier: EnqueueTier) -> None:
        alpha, beta, gamma = [await tier.host(name) for name in ("alpha", "beta", "gamma")]
        tier.owners["g"] = ("gamma", PORT)
        alpha.queue.accept_only()
        results = await send(await tier.client(alpha), Item("t", b"1"), Item("t", b"2", group="g"))
        assert all(result.require() for result in results)
        assert (alpha.items, beta.asked, gamma.items) == ([], {}, [b"1", b"2"])

    in_tier(story)


def test_forwarded_call_without_a_reply_has_an_unknown_outcome_and_is_not_sent_again() -> None:
    async def story(tier: EnqueueTier) -> None:
        alpha, beta, gamma = [await tier.host(name) for name in ("alpha", "beta", "gamma")]
        alpha.queue.failure = FULL
        for host in (beta, gamma):
            host.queue.failure = errors.UnknownOutcome("perhaps")
        with pytest.raises(UnknownOutcome):
            await send(await tier.client(alpha), Item("t", b"1"), Item("t", b"2"))
        assert sum(host.asked["enqueue", True] for host in (beta, gamma)) == 1

    in_tier(story)


def test_call_that_no_peer_is_reached_for_has_the_error_of_the_called_host() -> None:
    async def story(tier: EnqueueTier) -> None:
        alpha = await tier.host("alpha")
        await tier.host("beta", listens=False)
        alpha.queue.failure = errors.Unavailable("its breaker is open", retry_after_ms=70)
        with pytest.raises(Unavailable) as caught:
            await send(await tier.client(alpha), Item("t", b"1"))
        assert caught.value.retry_after_ms == 70

    in_tier(story)


def test_reply_that_lacks_results_leaves_all_items_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(tier: EnqueueTier) -> None:
        alpha, beta = await tier.host("alpha"), await tier.host("beta")
        alpha.queue.failure = FULL
        call = alpha.peers.call

        async def cut(*arguments: Any, **options: Any) -> Any:
            reply = await call(*arguments, **options)
            del reply.results[1:]
            return reply

        monkeypatch.setattr(alpha.peers, "call", cut)
        with pytest.raises(UnknownOutcome):
            await send(await tier.client(alpha), Item("t", b"1"), Item("t", b"2"))
        assert beta.items == [b"1", b"2"]

    in_tier(story)
