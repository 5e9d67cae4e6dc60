"""A namespace that floods all hosts of a cluster with ten times its rate, and another beside it.

The tests check that the flood is limited to its rate. They only report the latency of
the other namespace's calls, with and without the flood: a test's machine is busy.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

import pytest

from foqs_client import Client, FoqsError, Item, Namespace
from perf.lib.report import Report, percentile, say
from tests.support.faulty_cluster import FaultyCluster
from tests.support.workload import pause

pytestmark = [pytest.mark.process, pytest.mark.mysql, pytest.mark.zookeeper, pytest.mark.long, pytest.mark.timeout(600)]

RATE: Final = 6_000
"""Items per minute."""
_TIMES: Final = 10
_CALL_ITEMS: Final = 10
_QUIET_S: Final = 0.05
"""The time between two calls of the other namespace."""
_MINUTE_S: Final = 60


@pytest.fixture
def troubled() -> Iterator[FaultyCluster]:
    with FaultyCluster({"cluster.session_timeout_ms": 6_000}) as found:
        yield found


class _Quiet:
    """Makes calls of one item at fixed times."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._calls: set[asyncio.Task[None]] = set()
        self.took_s: list[float] = []

    async def play(self, seconds: float) -> float:
        """Return the p99 of its calls in milliseconds."""
        loop = asyncio.get_running_loop()
        self.took_s = []
        next_s = loop.time()
        end_s = next_s + seconds
        while next_s < end_s:
            call = asyncio.ensure_future(self._put(next_s))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)
            next_s += _QUIET_S
            await pause(max(0.0, next_s - loop.time()))
        await asyncio.gather(*self._calls)
        return round((percentile(sorted(self.took_s), 0.99) or 0.0) * 1_000, 1)

    async def _put(self, begun_s: float) -> None:
        result = (await self._client.enqueue([Item("quiet", b"x")], timeout_ms=20_000))[0]
        assert result.id is not None, result.error
        self.took_s.append(asyncio.get_running_loop().time() - begun_s)


class Taken(NamedTuple):
    """A call of which items were accepted."""

    begun_s: float
    ended_s: float
    items: int


class _Flood:
    """Make calls at fixed times through its own client, whether or not they succeed."""

    def __init__(self, client: Client, per_minute: float) -> None:
        self._client = client
        self._pause_s = 60 * _CALL_ITEMS / per_minute
        self._calls: set[asyncio.Task[None]] = set()
        self.taken: list[Taken] = []
        self.refused: Counter[str] = Counter()

    async def play(self) -> None:
        loop = asyncio.get_running_loop()
        next_s = loop.time()
        try:
            while True:
                next_s += self._pause_s
                await pause(max(0.0, next_s - loop.time()))
                call = asyncio.ensure_future(self._put())
                self._calls.add(call)
                call.add_done_callback(self._calls.discard)
        finally:
            await asyncio.gather(*self._calls)

    async def _put(self) -> None:
        begun_s = asyncio.get_running_loop().time()
        try:
            results = await self._client.enqueue([Item("flood", b"x" * 100)] * _CALL_ITEMS, timeout_ms=2_000)
        except FoqsError as error:
            self.refused[error.code] += _CALL_ITEMS
            return
        taken = sum(result.id is not None for result in results)
        self.refused.update(result.error.code for result in results if result.error is not None)
        self.taken.append(Taken(begun_s, asyncio.get_running_loop().time(), taken))


def test_a_flood_through_all_hosts_is_limited_to_its_rate(troubled: FaultyCluster) -> None:
    async def story() -> None:
        async with contextlib.AsyncExitStack() as stack:
            url = troubled.cluster.url
            admin = await stack.enter_async_context(Client(url))
            await admin.create_namespace(Namespace("flood", enqueues_per_minute=RATE))
            quiet = _Quiet(await stack.enter_async_context(Client(url)))
            clients = [await stack.enter_async_context(Client(url, namespace="flood")) for _ in troubled.cluster.hosts]
            await quiet.play(5)
            alone_ms = await quiet.play(30)
            floods = [_Flood(client, _TIMES * RATE / len(clients)) for client in clients]
            playing = [asyncio.ensure_future(flood.play()) for flood in floods]
            beside_ms = await quiet.play(_MINUTE_S + 15)
            for each in playing:
                each.cancel()
            await asyncio.gather(*playing, return_exceptions=True)
            least, most = minutes([each for flood in floods for each in flood.taken])
            refused = sum((flood.refused for flood in floods), Counter())
            figures = {
                "rate": RATE,
                "minute_least": least,
                "minute_most": most,
                "refused": dict(refused),
                "other_alone_p99_ms": alone_ms,
                "other_beside_p99_ms": beside_ms,
            }
            say("\n" + "\n".join(f"  {key:<20}  {value}" for key, value in figures.items()))
            Report("trouble").add({"story": "a flood through all hosts"}, figures)
            assert least >= 0.95 * RATE
            assert most <= 1.05 * RATE

    asyncio.run(story())


def minutes(taken: list[Taken]) -> tuple[int, int]:
    """Return the (least, most) items of any minute between the first call and the last.

    A slow machine must not count against the limit: the most are those of calls that began and ended in the minute, the
    least those of calls of which any part is in it.
    """
    last_s = max(call.begun_s for call in taken)
    least, most = [], []
    for start_s in (call.begun_s for call in taken):
        end_s = start_s + _MINUTE_S
        most.append(sum(call.items for call in taken if call.begun_s >= start_s and call.ended_s <= end_s))
        if end_s <= last_s:
            least.append(sum(call.items for call in taken if call.ended_s >= start_s and call.begun_s <= end_s))
    return min(least), max(most)
