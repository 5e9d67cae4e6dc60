"""How long does a takeover take that replays very many young items? `python -m perf.takeover`

Callers enqueue items of 1 KiB, which stay in the journals. The host is killed, and another one starts. Times count from
the start of its process: until every shard is served, until the first delivery, and until the last item was
delivered and acked. The same host without items comes first, for comparison.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final

import uvloop

from foqs.dev.server_process import stop_on_signals
from foqs_client import Client, Item
from perf.lib import machine
from perf.lib.payload import NUMBER_BYTES
from perf.lib.report import Report, say
from perf.lib.servers import FoqsHost
from perf.lib.stage import Stage, add_stage_options, stage

SHOWN: Final = (
    "young", "empty_ready_s", "ready_s", "first_s", "all_s", "replay_s", "held_ms", "host_mib",
)  # fmt: skip
_PER_CALL: Final = 500
_PAYLOAD: Final = b"x" * (1_024 - NUMBER_BYTES)


def main() -> None:
    options = _parser().parse_args()
    report = Report("takeover")
    with stage(options.system, options.shards, {"store.journal": True}) as found:
        assert found.host is not None
        report.add(
            {"items": options.items, "shards": options.shards, "callers": options.callers}, _measure(found, options)
        )
    report.table(SHOWN)


def _measure(found: Stage, options: argparse.Namespace) -> dict[str, Any]:
    host = found.host
    assert host is not None
    target = host.folder / "held"
    host.stop()
    host.command = [sys.executable, "-m", "perf.lib.held_loop", str(target)]
    empty_ready_s = _started(host)
    uvloop.run(_enqueue(host.address, options))
    young = _total(host, "foqs_journal_dirty_items")
    say(f"{young:,.0f} of {options.items:,} items are young")
    host.stop(signal.SIGKILL)
    begun_s = time.monotonic()
    ready_s = _started(host)
    replay_s = max(value for name, value in host.metrics().items() if name.startswith("foqs_journal_replay_seconds"))
    first_s, all_s = uvloop.run(_deliver_all(host.address, options, begun_s))
    host_mib = machine.peak_mib(host.pid) or 0.0
    host.stop()
    return {
        "young": round(young),
        "empty_ready_s": round(empty_ready_s, 2),
        "ready_s": round(ready_s, 2),
        "first_s": round(first_s, 2),
        "all_s": round(all_s, 2),
        "replay_s": round(replay_s, 2),
        "held_ms": round(float(Path(target).read_text())),
        "host_mib": round(host_mib),
    }


def _started(host: FoqsHost) -> float:
    begun_s = time.monotonic()
    host.start()
    return time.monotonic() - begun_s


def _total(host: FoqsHost, metric: str) -> float:
    return sum(value for name, value in host.metrics().items() if name.startswith(metric))


async def _enqueue(address: str, options: argparse.Namespace) -> None:
    async with Client(address, automatic_keys=False) as client:
        calls = iter(range(0, options.items, _PER_CALL))

        async def caller() -> None:
            for first in calls:
                numbers = range(first, min(first + _PER_CALL, options.items))
                for result in await client.enqueue([Item("t0", b"%016d" % n + _PAYLOAD) for n in numbers]):
                    result.require()

        await asyncio.gather(*(caller() for _ in range(options.callers)))


async def _deliver_all(address: str, options: argparse.Namespace, begun_s: float) -> tuple[float, float]:
    """Return when the first item was delivered, and when all were delivered and acked, in seconds from `begun_s`."""
    seen, left, first_s = bytearray(options.items), options.items, 0.0
    async with Client(address, automatic_keys=False) as client:

        async def consumer() -> None:
            nonlocal first_s, left
            while left:
                found = await client.dequeue({"t0": _PER_CALL}, wait_ms=200)
                first_s = first_s or (time.monotonic() - begun_s if found else 0.0)
                for delivery in found:
                    number = int(delivery.payload[:NUMBER_BYTES])
                    assert not seen[number], f"item {number} was delivered twice"
                    seen[number] = 1
                left -= len(found)
                for outcome in await client.ack(found) if found else ():
                    outcome.require()

        await asyncio.gather(*(consumer() for _ in range(options.callers)))
    return first_s, time.monotonic() - begun_s


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m perf.takeover", description=__doc__.partition("\n")[0])
    add_stage_options(parser, shards=1)
    parser.add_argument("--items", type=int, default=250_000)
    parser.add_argument("--callers", type=int, default=8)
    return parser


if __name__ == "__main__":
    with stop_on_signals():
        main()
