"""How many messages per second does a host serve over SQS, beside Thrift?

Three clients do the same on fresh servers: raw keep-alive connections, which show what
the host can do; boto3, which shows what a program in Python gets; and the native client
over Thrift. They send, or send, receive and delete, one message per call or ten. Each
message is counted: a run that lost or doubled one has no figure. Requests are not
signed, but have invocation ids, so that each send has an idempotency key.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from foqs.dev.server_process import free_port, stop_on_signals
from perf.lib import machine, sqs_load
from perf.lib.race import Broken
from perf.lib.report import Report, middle, percentile, say
from perf.lib.servers import ServerNotAvailable
from perf.lib.stage import PLAIN, SYSTEMS, Stage, stage
from perf.lib.trial import Trial, run_on

CLIENTS: Final = ("raw", "boto3", "thrift")
WORKS: Final = ("send", "cycle")
CALLERS: Final = {"raw": 64, "boto3": 8, "thrift": 64}
AIMS: Final = {("send", 1): 3_000, ("cycle", 1): 2_000, ("send", 10): 8_000}
"""Messages per second of the raw client on two cores, by work and messages of a call."""
COLUMNS: Final = (
    "client", "work", "batch", "callers", "items_per_s", "aim", "host_us", "database_us", "clients_us",
    "send_p50_ms", "send_p99_ms", "cores_used",
)  # fmt: skip
_END_S: Final = 120.0
"""The load must end so soon after its window."""


@dataclass(slots=True, frozen=True)
class Cell:
    """What is measured."""

    client: str
    work: str
    batch: int
    callers: int
    body_bytes: int
    system: str
    shards: int
    seconds: float
    warmup_s: float


def main() -> int:
    options = _parser().parse_args()
    cells = [
        Cell(
            client,
            work,
            batch,
            options.callers or CALLERS[client],
            options.body_bytes,
            options.system,
            options.shards,
            options.seconds,
            options.warmup,
        )
        for work in options.work
        for batch in options.batch
        for client in options.client
    ]
    report = Report("sqs")
    failed = 0
    for number, cell in enumerate(cells, 1):
        say(f"sqs {number}/{len(cells)}: {cell.client} {cell.work}, {cell.batch} a call, {cell.callers} callers")
        try:
            runs = [measure(cell) for _ in range(options.repeats)]
        except (Broken, ServerNotAvailable) as error:
            failed += 1
            say(f"  no figure: {error}")
            continue
        aim = AIMS.get((cell.work, cell.batch)) if cell.client == "raw" else None
        report.add({**asdict(cell), "repeats": options.repeats}, {**_medians(runs), "aim": aim})
    report.table(COLUMNS)
    return 1 if failed else 0


def measure(cell: Cell) -> dict[str, Any]:
    """Return the figures of one run on fresh servers. Raise Broken, ServerNotAvailable."""
    port = free_port()
    with stage(cell.system, cell.shards, {"server.sqs_port": port}) as found:
        if cell.client == "thrift":
            return _measure_thrift(found, cell)
        return _measure_sqs(found, cell, port)


def _measure_thrift(found: Stage, cell: Cell) -> dict[str, Any]:
    trial = Trial(
        system=cell.system,
        mode="both" if cell.work == "cycle" else "produce",
        batch=cell.batch,
        callers=cell.callers,
        payload_bytes=cell.body_bytes,
        shards=cell.shards,
        keyed=True,
        seconds=cell.seconds,
        warmup_s=cell.warmup_s,
    )
    figures = run_on(found, trial)
    return {**figures, "send_p50_ms": figures.get("enqueue_p50_ms"), "send_p99_ms": figures.get("enqueue_p99_ms")}


def _measure_sqs(found: Stage, cell: Cell, port: int) -> dict[str, Any]:
    attributes = {"VisibilityTimeout": str(sqs_load.VISIBILITY_S)}
    queue_url = sqs_load.client(port).create_queue(QueueName="perf", Attributes=attributes)["QueueUrl"]
    load = sqs_load.SqsLoad(
        cell.client, cell.work, cell.batch, cell.callers, cell.body_bytes, port, queue_url, cell.warmup_s, cell.seconds
    )
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=sqs_load.run, args=(load, sender))
    process.start()
    try:
        before = _cpu_s(found, process.pid, _next(receiver, "begun", _END_S + cell.warmup_s))
        after = _cpu_s(found, process.pid, _next(receiver, "ended", _END_S + cell.seconds))
        result = _next(receiver, None, _END_S)
        process.join(_END_S)
    finally:
        if process.is_alive():
            process.kill()
            process.join()
    if cell.work == "send":
        waiting = found.waiting()
        if waiting != result["sent"]:
            raise Broken(f"{result['sent']} messages were sent, and {waiting} are in the queue")
    return _figures(cell, result, {name: after[name] - before[name] for name in after})


def _next(receiver: Any, wanted: str | None, timeout_s: float) -> Any:
    """Return the next word of the load process. Raise Broken if it is an error, or does not come in time."""
    if not receiver.poll(timeout_s):
        raise Broken(f"the load said nothing for {timeout_s:.0f} s")
    found = receiver.recv()
    if isinstance(found, str) and found != wanted:
        raise Broken(found)
    return found


def _cpu_s(found: Stage, pid: int | None, _: Any) -> dict[str, float]:
    assert pid is not None
    return {**found.cpu_s(), "clients": machine.cpu_s(pid)}


def _figures(cell: Cell, result: Mapping[str, Any], used_s: Mapping[str, float]) -> dict[str, Any]:
    messages = result["messages"]
    if not messages:
        raise Broken("no message came through in the window")
    return {
        "items_per_s": messages / cell.seconds,
        "host_us": used_s.get("host", 0.0) / messages * 1e6,
        "database_us": used_s.get("database", 0.0) / messages * 1e6,
        "clients_us": used_s["clients"] / messages * 1e6,
        "cores_used": sum(used_s.values()) / cell.seconds,
        "send_p50_ms": percentile(result["latencies_ms"], 0.5),
        "send_p99_ms": percentile(result["latencies_ms"], 0.99),
    }


def _medians(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    figures: dict[str, Any] = {"runs_items_per_s": [run["items_per_s"] for run in runs]}
    for name in ("items_per_s", "host_us", "database_us", "clients_us", "cores_used", "send_p50_ms", "send_p99_ms"):
        values = [run[name] for run in runs if run.get(name) is not None]
        figures[name] = middle(values) if values else None
    return figures


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m perf.sqs", description=__doc__)
    parser.add_argument("--client", nargs="+", choices=CLIENTS, default=list(CLIENTS))
    parser.add_argument("--work", nargs="+", choices=WORKS, default=list(WORKS))
    parser.add_argument(
        "--batch", nargs="+", type=int, choices=range(1, 11), default=[1, 10], help="messages of a call"
    )
    parser.add_argument("--callers", type=int, help="connections, threads or callers; by default " + str(CALLERS))
    parser.add_argument("--body", type=int, dest="body_bytes", default=1_024, help="bytes of a message, at least 36")
    parser.add_argument("--system", choices=[each for each in SYSTEMS if each.startswith("foqs")], default=PLAIN)
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3.0, help="measured in each run")
    parser.add_argument("--warmup", type=float, default=1.0, help="seconds before the measured ones")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each cell; the medians are shown")
    return parser


if __name__ == "__main__":
    with stop_on_signals():
        sys.exit(main())
