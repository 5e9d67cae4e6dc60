"""A host process stays within its memory under clients that never read and that never stop sending.

The tests look at the process from outside. They send or request many times the bytes
that the host may hold, and a neighbour is served meanwhile.
"""

from __future__ import annotations

import re
import select
import socket
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

from foqs_client import Client, Item
from foqs_contract.idl import ttypes
from tests.support.aio import run
from tests.support.poll import until
from tests.support.processes import RestartableHost, quick_host
from tests.support.rpc_server import call
from tests.support.tables import in_sqlite

pytestmark = [pytest.mark.process]

MIB: Final = 1 << 20
PAYLOAD: Final = bytes(10_000)
LIMITS: Final[Mapping[str, Any]] = {
    "rpc.in_flight_bytes_max": 8 * MIB,
    "rpc.frame_bytes_max": 2 * MIB,
    "calls.delivery_bytes_max": MIB,
    "shard.queue_bytes_max": 4 * MIB,
    "row_cache.written_bytes_max": 4 * MIB,
    "row_cache.prefetched_bytes_max": 4 * MIB,
    "store.shards": 1,
}
HELD_MAX: Final = 160 * MIB
"""Together 30 MiB. Each is held a few times: as received bytes, as Python objects, as SQL, as pages."""
SENT: Final = 800 * MIB
CONNECTIONS: Final = 4
JOURNALED_MAX: Final = 8 * MIB
STALLED: Final = 100 * MIB


@pytest.fixture
def host(tmp_path: Path) -> Iterator[RestartableHost]:
    with RestartableHost(tmp_path / "host", f"sqlite:{tmp_path / 'data'}", LIMITS) as process:
        process.start()
        # The memory of a host after its first work does not count.
        run(work(process))
        yield process
        assert process.stop() == 0


async def work(host: RestartableHost) -> None:
    async with Client(host.address) as client:
        for _ in range(5):
            results = await client.enqueue([Item("t", PAYLOAD) for _ in range(100)])
            assert [result.error for result in results] == [None] * 100
        page = await client.peek("t", limit=100, with_payload=True)
        assert page.items


def peak_bytes(host: RestartableHost) -> int:
    """Return the highest memory of the process so far."""
    lines = Path(f"/proc/{host.pid}/status").read_text().splitlines()
    [kib] = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return int(kib) * 1024


def send_without_reading(host: RestartableHost, message: bytes, times: int, over: Callable[[], bool]) -> int:
    """Send a message repeatedly and read nothing. Then stay connected until `over`, or until the host ends it.

    Return how many bytes the host accepted.
    """
    sent = 0
    with socket.create_connection(("127.0.0.1", host.port), timeout=60) as connection:
        try:
            for _ in range(times):
                connection.sendall(message)
                sent += len(message)
            closed = select.poll()
            closed.register(connection, select.POLLHUP | select.POLLERR)
            while not over() and not closed.poll(100):
                pass
        except OSError:
            pass  # the host has closed it
    return sent


def abuse(host: RestartableHost, message: bytes, times: int, over: Callable[[], bool]) -> int:
    """Send on several connections at once, beside a working neighbour. Return the bytes that the host accepted."""
    with ThreadPoolExecutor(CONNECTIONS) as threads:
        sending = [threads.submit(send_without_reading, host, message, times, over) for _ in range(CONNECTIONS)]
        run(neighbour(host, lambda: all(each.done() for each in sending)), timeout=150)
        return sum(each.result() for each in sending)


async def neighbour(host: RestartableHost, over: Callable[[], bool]) -> None:
    """Enqueue one item after the other until `over`, and one more. Each must be accepted in the end."""
    async with Client(host.address) as client:
        while True:
            last = over()
            [result] = await client.enqueue([Item("neighbour", b"small")], timeout_ms=60_000)
            assert result.error is None
            if last:
                return


def test_a_client_that_never_reads_its_replies_costs_no_more_memory_than_configured(host: RestartableHost) -> None:
    before = peak_bytes(host)
    request = ttypes.PeekRequest(
        namespace_name="default", topic="t", page=ttypes.Page(limit=100), with_payload=True, timeout_ms=60_000
    )

    def closed() -> bool:
        return "closed: replies that peers do not read take too much memory" in host.log

    # A reply is a megabyte.
    abuse(host, call("peek", request), SENT // MIB // CONNECTIONS, closed)
    assert closed()
    assert peak_bytes(host) - before < HELD_MAX


def test_a_client_that_never_stops_sending_costs_no_more_memory_than_configured(host: RestartableHost) -> None:
    before = peak_bytes(host)
    items = [ttypes.NewItem(topic="flood", payload=PAYLOAD) for _ in range(100)]
    message = call("enqueue", ttypes.EnqueueRequest("default", items))
    sent = abuse(host, message, SENT // len(message) // CONNECTIONS, lambda: True)
    assert sent > 2 * HELD_MAX, "too little was sent"
    assert peak_bytes(host) - before < HELD_MAX


def test_a_stall_of_all_consumers_costs_no_more_memory_than_the_journal_may_have(tmp_path: Path) -> None:
    """Nothing is written back by its age, so it is the bound that makes flushes write rows."""
    command = quick_host(journal={"write_back_after_ms": 3_600_000, "memory_bytes_max": JOURNALED_MAX})
    options = {**LIMITS, "store.journal": True}
    with RestartableHost(tmp_path / "host", f"sqlite:{tmp_path / 'data'}", options, command) as host:
        host.start()
        run(work(host))
        before = peak_bytes(host)
        used = run(stall(host))
        assert JOURNALED_MAX // 2 < used < JOURNALED_MAX + 2 * MIB, "what one flush may add"
        assert peak_bytes(host) - before < 100 * MIB
        rows = in_sqlite(tmp_path / "data", shards=1).query(0, "SELECT COUNT(*) FROM {item}")[0][0]
        assert rows * len(PAYLOAD) > STALLED - 2 * JOURNALED_MAX
        assert host.stop() == 0


async def stall(host: RestartableHost) -> int:
    """Enqueue items that nobody takes. Return the bytes that the journal has in memory at the end."""
    async with Client(host.address) as client:
        for _ in range(STALLED // len(PAYLOAD) // 100):
            for result in await client.enqueue([Item("stalled", PAYLOAD) for _ in range(100)], timeout_ms=60_000):
                result.require()
    answers: list[tuple[int, str]] = []

    def is_answered() -> bool:
        if (answer := host.get("/metrics")) is not None:
            answers.append(answer)
        return bool(answers)

    until(is_answered, "the host shows its metrics")
    [used] = re.findall(r"^foqs_journal_memory_bytes{[^}]*} (\S+)$", answers[0][1], re.MULTILINE)
    return int(float(used))
