"""Tests of the fake host. Tests of its queue are in tests/behaviour."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import warnings
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from foqs.options.config import ConfigError
from foqs.testing import FakeHost, SyncFakeHost
from foqs_client import Item, Nack, Namespace, NamespaceNotFound, Unreachable
from tests.support.aio import run
from tests.support.virtual_time import run_virtual

DAY_MS = 86_400_000


def threads_since(before: Collection[threading.Thread]) -> list[threading.Thread]:
    """Return the threads that were started since then and run. Those of an earlier test may still be ending."""
    return [thread for thread in threading.enumerate() if thread not in before]


def test_it_opens_no_socket_and_starts_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        before = threading.enumerate()
        monkeypatch.setattr(socket, "socket", None)
        async with FakeHost() as fake:
            client = fake.client()
            [result] = await client.enqueue([Item("t")])
            assert [view.id for view in await fake.items("t")] == [result.require()]
            assert threads_since(before) == []

    run(main())


def test_new_default_of_attempts_is_for_new_items_only() -> None:
    """docs/worker.md says it: not even a redriven or moved item gets a maximum."""

    async def main() -> None:
        async with FakeHost() as fake:
            client = fake.client()
            ids = [result.require() for result in await client.enqueue([Item("t", b"moved"), Item("t", b"redriven")])]
            await client.update_namespace(Namespace("default", attempts_max_default=1))
            await client.enqueue([Item("t", b"new")])
            found = await client.dequeue({"t": 3})
            await client.nack([Nack(each.id, each.token, dead=True) for each in found if each.id == ids[1]])
            await client.redrive(ids[1:])
            await client.nack([Nack(each.id, each.token, delay_ms=0) for each in found if each.id != ids[1]])
            await client.move(ids[:1], "t2")
            views = {view.payload: view for topic in ("t", "t2") for view in await fake.items(topic)}
            assert {name: (view.state, view.attempts_max) for name, view in views.items()} == {
                b"new": ("dead", 1),
                b"moved": ("ready", 0),
                b"redriven": ("ready", 0),
            }

    run(main())


def test_two_hosts_of_one_process_know_nothing_of_each_other() -> None:
    async def main() -> None:
        async with FakeHost() as one, FakeHost() as other:
            await one.client().enqueue([Item("t")])
            assert len(await one.items("t")) == 1
            assert await other.items("t") == []

    run(main())


def test_time_goes_through_everything_that_is_due_in_its_order() -> None:
    async def main() -> None:
        async with FakeHost() as fake:
            client = fake.client()
            seen: list[str] = []

            async def consume() -> None:
                while True:
                    for delivery in await client.dequeue({"t": 1}, wait_ms=20_000):
                        seen.append(f"{delivery.payload.decode()} {delivery.attempt}")
                        done = delivery.payload == b"soon" or delivery.attempt == 3
                        await (client.ack if done else client.nack)([delivery])

            consumer = asyncio.ensure_future(consume())
            # The second would be over by its TTL if time had jumped.
            await client.enqueue(
                [Item("t", b"late", delay_ms=40_000), Item("t", b"soon", delay_ms=1_000, ttl_ms=2_000)]
            )
            await fake.advance(600_000)
            assert seen == ["soon 1", "late 1", "late 2", "late 3"]
            assert await fake.items("t") == []
            consumer.cancel()

    run(main())


def test_long_poll_ends_by_the_clock_of_the_host() -> None:
    async def main() -> None:
        async with FakeHost() as fake:
            polling = asyncio.ensure_future(fake.client().dequeue({"t": 1}, wait_ms=20_000))
            await fake.advance(19_000)
            assert not polling.done()
            await fake.advance(1_000)
            assert await polling == []

    run(main())


@pytest.mark.once
def test_year_of_virtual_time_passes() -> None:
    async def main() -> None:
        async with FakeHost() as fake:
            client = fake.client()
            await client.enqueue([Item("t", delay_ms=365 * DAY_MS)])
            await fake.advance(365 * DAY_MS - 1_000)
            assert await client.dequeue({"t": 1}) == []
            await fake.advance(1_000)
            assert len(await client.dequeue({"t": 1})) == 1

    run(main())


@pytest.mark.once
def test_item_is_ready_after_an_advance_by_exactly_its_delay() -> None:
    async def main() -> None:
        for tenth in range(10):
            await asyncio.sleep(0.0001 * tenth)  # the host starts within a millisecond, and so do its hourly timers
            async with FakeHost() as fake:
                await asyncio.sleep(0.0003)
                client = fake.client()
                await client.enqueue([Item("t", delay_ms=DAY_MS)])
                await fake.advance(DAY_MS)
                assert [view.state for view in await fake.items("t")] == ["ready"]

    run_virtual(main)


def test_options_are_the_host_s_and_namespaces_are_made_by_calls() -> None:
    async def main() -> None:
        with pytest.raises(ConfigError, match="nonsense"):
            FakeHost({"shard.nonsense": 1})
        async with FakeHost({"namespace.lease_ms_default": 700}) as fake:
            client = fake.client(namespace="mail")
            await client.create_namespace(Namespace("mail"))
            await client.enqueue([Item("t")])
            [delivery] = await client.dequeue({"t": 1})
            assert delivery.lease_remaining_ms <= 700
            assert [view.state for view in await fake.items("t", namespace="mail")] == ["leased"]
            with pytest.raises(NamespaceNotFound):
                await fake.client(namespace="other").topics()

    run(main())


def test_host_that_cannot_start_says_why_and_leaves_no_loop_open(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(RuntimeError, match=r"fake host; use the store in memory"):
            async with FakeHost({"store.url": f"sqlite:{tmp_path}"}):
                pass

    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        run(main())
        gc.collect()


def test_synchronous_host_that_cannot_start_leaves_no_thread(tmp_path: Path) -> None:
    before = threading.enumerate()
    with (
        pytest.raises(RuntimeError, match="use the store in memory"),
        SyncFakeHost({"store.url": f"sqlite:{tmp_path}"}),
    ):
        pass
    assert threads_since(before) == []


def test_items_shows_all_states_with_their_payloads() -> None:
    async def main() -> None:
        async with FakeHost() as fake:
            client = fake.client()
            await client.enqueue(
                [Item("t", payload, number) for number, payload in enumerate((b"d", b"l", b"r", b"s"))]
            )
            await client.enqueue([Item("t", b"e", delay_ms=60_000)])
            dead, _ = await client.dequeue({"t": 2})
            [outcome] = await client.nack([Nack(dead.id, dead.token, dead=True)])
            outcome.require()
            assert [(view.payload, view.state) for view in await fake.items("t")] == [
                (b"r", "ready"), (b"s", "ready"), (b"e", "deferred"), (b"l", "leased"), (b"d", "dead"),
            ]  # fmt: skip

    run(main())


def test_end_of_the_fake_host_closes_its_clients_and_answers_its_calls() -> None:
    async def main() -> None:
        async with FakeHost() as fake:
            client, idle = fake.client(), fake.client()
            polling = asyncio.ensure_future(client.dequeue({"t": 1}, wait_ms=20_000))
            await fake.advance(0)
        with pytest.raises(Exception, match="UNKNOWN_OUTCOME"):
            await polling
        with pytest.raises(Unreachable, match="closed"):
            await idle.topics()

    run(main())


def test_synchronous_api_is_the_same_host_in_one_thread() -> None:
    before = threading.enumerate()
    with SyncFakeHost() as fake:
        client = fake.client()
        client.enqueue([Item("t", b"x", delay_ms=DAY_MS)])
        assert len(threads_since(before)) == 1
        fake.advance(DAY_MS)
        assert [view.state for view in fake.items("t")] == ["ready"]
        with ThreadPoolExecutor(1) as other, fake.client() as second:
            polling = other.submit(client.dequeue, {"u": 1}, wait_ms=20_000)
            second.enqueue([Item("u", b"y")])
            [delivery] = polling.result()
            assert delivery.payload == b"y"
        assert [delivery.payload for delivery in client.dequeue({"t": 1})] == [b"x"]
    assert threads_since(before) == []
    with pytest.raises(Unreachable, match="closed"):
        client.topics()
