"""Two items that one host accepts one after the other come in that order, 100,000 times, on each database.

Two other processes keep both cores busy, and the host is killed now and then. Each topic
holds one pair: the second item is sent after the first one was acknowledged, and the
consumer comes after both.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest

from foqs_client import Client, FoqsError, Item
from tests.support.aio import run
from tests.support.mysql9 import running
from tests.support.processes import RestartableHost

pytestmark = [pytest.mark.process, pytest.mark.mysql, pytest.mark.long]

PAIRS: Final = 100_000
CHAINS: Final = 24
"""Topics in use at once."""
KILLS: Final = 4
_BURN: Final = "while True: pass"


@contextmanager
def busy_machine() -> Iterator[None]:
    """Run two processes that do nothing but compute."""
    burners = [subprocess.Popen([sys.executable, "-c", _BURN]) for _ in range(2)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


class Pairs:
    """Sends and takes pairs."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.started = self.compared = 0
        self.swapped: list[str] = []

    async def work(self) -> None:
        """Play one pair after the other. A pair of which a call fails is not compared."""
        while self.started < PAIRS:
            self.started += 1
            try:
                await self._play(f"pair-{self.started}")
            except FoqsError:
                continue

    async def _play(self, topic: str) -> None:
        sent = []
        for payload in (b"first", b"second"):
            [result] = await self._client.enqueue([Item(topic, payload, lease_ms=600_000)])
            sent.append(result.require())
        found: list[str] = []
        while len(found) < 2:
            deliveries = await self._client.dequeue({topic: 2 - len(found)}, wait_ms=5_000)
            found += [delivery.id for delivery in deliveries]
            await self._client.ack(deliveries)
        self.compared += 1
        if found != sent:
            self.swapped.append(topic)


@pytest.fixture(params=["memory", "sqlite", "mariadb", "mysql9"])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RestartableHost]:
    with ExitStack() as stack:
        if request.param in ("memory", "sqlite"):
            url = f"{request.param}:" + (str(tmp_path / "data") if request.param == "sqlite" else "")
        else:
            server = stack.enter_context(running(request.param))
            url = f"mysql://root@127.0.0.1:{server.port}/{server.database()}"
        yield stack.enter_context(RestartableHost(tmp_path / "host", url, {"namespace.lease_ms_default": 600_000}))


@pytest.mark.timeout(3_600)
def test_no_pair_is_swapped_beside_load_and_kills(host: RestartableHost) -> None:
    async def play() -> Pairs:
        async with Client(host.address, timeout_ms=20_000) as client:
            pairs = Pairs(client)
            workers = [asyncio.ensure_future(pairs.work()) for _ in range(CHAINS)]
            for kill in range(1, KILLS + 1 if "memory:" not in host.config.read_text() else 1):
                while pairs.started < kill * PAIRS // (KILLS + 1):
                    for worker in (await asyncio.wait(workers, timeout=0.2))[0]:
                        worker.result()  # raises its error, which would otherwise end no wait
                await asyncio.to_thread(host.kill9)
                await asyncio.to_thread(host.start)
            await asyncio.gather(*workers)
            return pairs

    host.start()
    with busy_machine():
        pairs = run(play(), timeout=3_500)
    print(f"{pairs.compared} pairs compared, {len(pairs.swapped)} swapped")
    assert pairs.compared >= PAIRS * 9 // 10
    assert pairs.swapped == []
