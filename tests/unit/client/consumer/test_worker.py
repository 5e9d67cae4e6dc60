"""Tests the signals that stop a worker."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from foqs.testing import FakeHost
from foqs_client import Item
from foqs_client.consumer import Consumer, Counts, Job, run_all
from tests.support.aio import run


@pytest.fixture
def ignored_hangup() -> Iterator[None]:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGHUP, before)


async def stopped_by(*numbers: signal.Signals) -> tuple[Counts, list[bool]]:
    """Send signals one after the other to a worker with a running handler. Return its counts, and whether it stopped."""
    async with FakeHost() as fake:
        client = fake.client()
        begun, stopping = asyncio.Event(), asyncio.Event()

        async def handle(job: Job) -> None:
            begun.set()
            await stopping.wait()

        await client.enqueue([Item("t")])
        consumer = Consumer(client, handle, ["t"])
        running = asyncio.ensure_future(run_all([consumer]))
        await begun.wait()
        stops: list[bool] = []
        loop = asyncio.get_running_loop()
        for number in numbers:
            handled = asyncio.Event()
            loop.add_signal_handler(signal.SIGUSR1, handled.set)
            os.kill(os.getpid(), number)
            os.kill(os.getpid(), signal.SIGUSR1)  # handled after it
            await handled.wait()
            stops.append(consumer._stopping.is_set())
        loop.remove_signal_handler(signal.SIGUSR1)
        stopping.set()
        return await running, stops


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_stops_a_worker_in_order(number: signal.Signals) -> None:
    assert run(stopped_by(number)) == (Counts(done=1), [True])


def test_hangup_does_not_stop_a_worker_that_ignores_it(ignored_hangup: None) -> None:
    assert run(stopped_by(signal.SIGHUP, signal.SIGTERM)) == (Counts(done=1), [False, True])
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
