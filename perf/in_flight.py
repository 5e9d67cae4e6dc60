"""What does a worker lose if no item waits in it? `python -m perf.in_flight`

Real `foqs worker` processes empty the topics of their consumers, with `in_flight` as a multiple of the
concurrency, one multiple after the other in every round. A handler does nothing, or
sleeps for --wait-ms. The rate counts from the first item that any worker began to the
last one, so the start of the processes does not count. CPU per item is the host's and
the workers' own; it holds the start of the workers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from foqs.dev.server_process import stop_on_signals
from foqs_client import Client, Item
from perf.lib.machine import ROOT
from perf.lib.report import Report, middle, say
from perf.lib.stage import Stage, add_stage_options, stage

SHOWN: Final = (
    "system", "handler", "wait_ms", "workers", "consumers", "concurrency", "times", "items_per_s", "ratio", "host_us", "worker_us",
)  # fmt: skip
_PUT: Final = 500
_POLL_S: Final = 0.05


def main() -> None:
    options = _parser().parse_args()
    report = Report("in_flight")
    with stage(options.system, options.shards) as found:
        for handler in options.handlers:
            for wait_ms in options.wait_ms:
                for concurrency in options.concurrency:
                    _compare(report, found, options, handler, wait_ms, concurrency)
    report.table(SHOWN)


def _compare(
    report: Report, found: Stage, options: argparse.Namespace, handler: str, wait_ms: float, concurrency: int
) -> None:
    runs: dict[int, list[dict[str, float]]] = {times: [] for times in options.times}
    for place in range(options.rounds):
        # They take turns: the first may find the machine warmer or colder.
        for times in options.times[:: 1 if place % 2 else -1]:
            run = _run(found, options, handler, wait_ms, concurrency, times)
            runs[times].append(run)
            say(f"{handler}, {wait_ms:g} ms, {concurrency} x {times}: {run['items_per_s']:,.0f} items/s")
    base = options.times[0]
    for times, members in runs.items():
        pairs = [one["items_per_s"] / other["items_per_s"] for one, other in zip(members, runs[base], strict=True)]
        report.add(
            {"system": found.system, "handler": handler, "wait_ms": wait_ms, "workers": options.workers,
             "consumers": options.consumers,
             "concurrency": concurrency, "times": times, "items": options.items, "payload_bytes": options.payload,
             "rounds": options.rounds},
            {"items_per_s": round(middle([run["items_per_s"] for run in members])), "ratio": round(middle(pairs), 3),
             "host_us": round(middle([run["host_us"] for run in members]), 1),
             "worker_us": round(middle([run["worker_us"] for run in members]), 1), "runs": members},
        )  # fmt: skip


def _run(
    found: Stage, options: argparse.Namespace, handler: str, wait_ms: float, concurrency: int, times: int
) -> dict[str, float]:
    """Fill the queue, let the workers empty it, and return their figures."""
    assert found.host is not None
    address = found.host.address
    asyncio.run(_fill(address, options))
    host_s = sum(found.cpu_s().values())
    with TemporaryDirectory(prefix="foqs-perf-") as notes:
        environment = {
            **os.environ, "PERF_NOTES": notes, "PERF_WAIT_S": str(wait_ms / 1_000), "PERF_HANDLER": handler,
            "PERF_CONSUMERS": str(options.consumers), "FOQS_ADDRESS": address,
        }  # fmt: skip
        command = [
            str(Path(sys.executable).with_name("foqs")), "worker", "perf.lib.short_jobs:worker",
            "--concurrency", str(concurrency), "--in-flight", str(times * concurrency), "-o", "json",
        ]  # fmt: skip
        workers = [
            subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            for _ in range(options.workers)
        ]
        try:
            asyncio.run(_wait_empty(address))
            host_s = sum(found.cpu_s().values()) - host_s
        finally:
            for worker in workers:
                worker.send_signal(signal.SIGTERM)
            for worker in workers:
                worker.wait()
        noted: list[dict[str, Any]] = [json.loads(path.read_text()) for path in Path(notes).iterdir()]
    if sum(note["items"] for note in noted) != options.items:
        raise AssertionError(f"unexpected notes of {options.items} items: {noted}")
    took_s = max(note["last_s"] for note in noted) - min(note["first_s"] for note in noted)
    return {
        "items_per_s": options.items / took_s,
        "host_us": host_s / options.items * 1e6,
        "worker_us": sum(note["cpu_s"] for note in noted) / options.items * 1e6,
    }


async def _fill(address: str, options: argparse.Namespace) -> None:
    items = [Item(f"t-{number % options.consumers}", b"x" * options.payload) for number in range(options.items)]
    async with Client(address, automatic_keys=False, timeout_ms=30_000) as client:
        for start in range(0, len(items), _PUT):
            for result in await client.enqueue(items[start : start + _PUT]):
                result.require()


async def _wait_empty(address: str) -> None:
    until_s = time.monotonic() + 600
    async with Client(address, timeout_ms=30_000) as client:
        while (await client.topics(states=["ready", "leased", "deferred"])).topics:
            if time.monotonic() > until_s:
                raise AssertionError("the workers did not empty the queue in ten minutes")
            await asyncio.sleep(_POLL_S)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m perf.in_flight", description=__doc__.partition("\n")[0])
    add_stage_options(parser, shards=2)
    parser.add_argument("--items", type=int, default=20_000, help="items of each run")
    parser.add_argument("--payload", type=int, default=1_024, help="bytes")
    parser.add_argument("--workers", type=int, default=1, help="processes of `foqs worker`")
    parser.add_argument("--consumers", type=int, default=1, help="tasks of each worker, each with a topic of its own")
    parser.add_argument("--concurrency", type=int, nargs="*", default=[10, 100])
    parser.add_argument("--times", type=int, nargs="*", default=[1, 2, 10], help="in_flight by concurrency")
    parser.add_argument("--handlers", nargs="*", choices=("short", "plain"), default=["short", "plain"])
    parser.add_argument("--wait-ms", type=float, nargs="*", default=[0.0], help="how long a handler sleeps")
    parser.add_argument("--rounds", type=int, default=3)
    return parser


if __name__ == "__main__":
    with stop_on_signals():
        main()
