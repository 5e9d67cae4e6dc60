"""How evenly does a topic serve its tenants, with turns and without? `python -m perf.fairness`

Each trial runs once for each policy of its topic: `none`, `items` and `time`.

- `tenants`, the trial of FaQueue: six tenants send very different numbers of items, one tenant after the other, and
  then consumers work them off. How far are the tenants apart in what their first items waited?
- `pareto`, the skewed load of QuiCK: very many tenants send for a while, each at a rate of its own from a Pareto
  distribution, and more than the consumers can do. What do the items of the quieter half wait?
- `flood`: one tenant has very many items waiting. What does the first item of another tenant wait?
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from math import log
from random import Random
from typing import Any, Final

import uvloop

from foqs.dev.server_process import stop_on_signals
from foqs_client import Client, Delivery, Item, TopicPolicy
from perf.lib.fairness import Served, percentiles, spread
from perf.lib.report import Report, say
from perf.lib.running import running
from perf.lib.stage import add_stage_options, stage

TENANTS: Final = (300, 20, 500, 200, 1_000, 120)
"""The items of each tenant, as FaQueue has them."""
PARETO_ALPHA: Final = log(5) / log(4)
"""The shape of the distribution, as QuiCK has it: a fifth of the tenants send four fifths of the items."""
POLICIES: Final = ("none", "items", "time")
SHOWN: Final = (
    "trial", "policy", "delivered", "missing", "head_mean_sd_s", "head_p90_sd_s", "quiet_p50_ms", "quiet_p99_ms", "all_p50_ms",
    "all_p99_ms",
)  # fmt: skip
_PER_CALL: Final = 500
_CALLS: Final = 8
"""The calls in flight while very many items are sent."""
_TICK_S: Final = 0.01


class Load:
    """What was sent to one topic, and what was delivered from it to consumers that handle an item for `work_s` each."""

    def __init__(self, client: Client, topic: str, work_s: float) -> None:
        self.served: list[Served] = []
        self._client = client
        self._topic = topic
        self._work_s = work_s
        self._sent: dict[bytes, tuple[str, float]] = {}
        self._numbers = itertools.count()

    @property
    def missing(self) -> int:
        """How many items were sent and not delivered."""
        return len(self._sent) - len(self.served)

    async def send(self, tenants: Sequence[str]) -> None:
        """Send an item for each of these tenants, in one call."""
        items = [Item(self._topic, b"%d" % next(self._numbers), group=tenant) for tenant in tenants]
        now_s = time.monotonic()
        for item in items:
            self._sent[item.payload] = item.group or "", now_s
        for result in await self._client.enqueue(items):
            result.require()

    async def send_many(self, tenant: str, count: int) -> None:
        """Send very many items of one tenant, in several calls at once."""
        calls = iter([min(_PER_CALL, count - first) for first in range(0, count, _PER_CALL)])

        async def caller() -> None:
            for size in calls:
                await self.send([tenant] * size)

        await asyncio.gather(*(caller() for _ in range(_CALLS)))

    def consumers(self, count: int) -> AbstractAsyncContextManager[None]:
        """Let this many consumers work until the block ends."""
        return running(self._consume() for _ in range(count))

    async def until_all_are_delivered(self) -> None:
        while self.missing:  # noqa: ASYNC110 - the clock of the trial is not that precise
            await asyncio.sleep(_TICK_S)

    async def _consume(self) -> None:
        while True:
            for delivery in await self._client.dequeue({self._topic: 1}, wait_ms=10_000):
                self._record(delivery)
                await asyncio.sleep(self._work_s)
                for outcome in await self._client.ack([delivery]):
                    outcome.require()

    def _record(self, delivery: Delivery) -> None:
        tenant, sent_s = self._sent[delivery.payload]
        self.served.append(Served(tenant, sent_s, time.monotonic()))


async def tenants(load: Load, options: argparse.Namespace) -> dict[str, Any]:
    for number, count in enumerate(options.tenants, 1):
        await load.send_many(f"tenant {number}", count)
    async with load.consumers(options.consumers):
        await load.until_all_are_delivered()
    return spread(load.served)


async def pareto(load: Load, options: argparse.Namespace) -> dict[str, Any]:
    rng = Random(1)
    names = [f"tenant {number}" for number in range(options.clients)]
    rates = [rng.paretovariate(PARETO_ALPHA) for _ in names]
    middle = sorted(rates)[len(rates) // 2]
    quiet = {name for name, rate in zip(names, rates, strict=True) if rate < middle}
    per_s = options.load * options.consumers / (options.work / 1_000)
    begun_s, sent = time.monotonic(), 0
    async with load.consumers(options.consumers):
        while (passed_s := time.monotonic() - begun_s) < options.seconds:
            due = int(passed_s * per_s) - sent
            if due:
                await load.send(rng.choices(names, rates, k=min(due, _PER_CALL)))
                sent += min(due, _PER_CALL)
            await asyncio.sleep(_TICK_S)
        await load.until_all_are_delivered()
    return percentiles("quiet", [each.wait_s for each in load.served if each.tenant in quiet])


async def flood(load: Load, options: argparse.Namespace) -> dict[str, Any]:
    await load.send_many("flood", options.flood)
    begun_s, sent = time.monotonic(), 0
    async with load.consumers(options.consumers):
        while time.monotonic() - begun_s < options.seconds:
            await load.send([f"quiet {sent}"])
            sent += 1
            await asyncio.sleep(1 / options.rate)
    waited_s = [each.wait_s for each in load.served if each.tenant != "flood"]
    return {"quiet": sent, "quiet_delivered": len(waited_s), **percentiles("quiet", waited_s)}


TRIALS: Final[dict[str, Callable[[Load, argparse.Namespace], Awaitable[dict[str, Any]]]]] = {
    "tenants": tenants,
    "pareto": pareto,
    "flood": flood,
}


async def _play(address: str, trial: str, policy: str, options: argparse.Namespace) -> tuple[Load, dict[str, Any]]:
    topic = f"{trial}-{policy}"
    async with Client(address, automatic_keys=False) as client:
        if policy != "none":
            await client.set_topic_policy(TopicPolicy(topic, fair=policy))
        load = Load(client, topic, options.work / 1_000)
        figures = await TRIALS[trial](load, options)
        await client.purge_topic(topic)
    figures |= percentiles("all", [each.wait_s for each in load.served])
    return load, {"delivered": len(load.served), "missing": load.missing, **figures}


def main() -> None:
    options = _parser().parse_args()
    report = Report("fairness")
    served: dict[tuple[str, str], list[Served]] = {}
    with stage(options.system, options.shards) as found:
        assert found.host is not None
        for trial, policy in itertools.product(options.trials, POLICIES):
            say(f"{trial}, {policy} ...")
            load, figures = uvloop.run(_play(found.host.address, trial, policy, options))
            parameters = {"trial": trial, "policy": policy, "consumers": options.consumers, "work_ms": options.work}
            report.add(parameters, figures)
            served[trial, policy] = load.served
    report.table(SHOWN)
    if not options.no_plots:
        from perf.lib import plots

        say(f"plot: {plots.fairness(report, served)}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m perf.fairness", description=__doc__.partition("\n")[0])
    add_stage_options(parser, shards=2)
    parser.add_argument("--trials", nargs="+", choices=list(TRIALS), default=list(TRIALS))
    parser.add_argument("--consumers", type=int, default=16)
    parser.add_argument("--work", type=float, default=20.0, help="milliseconds that a consumer handles an item")
    parser.add_argument(
        "--tenants", nargs="+", type=int, default=list(TENANTS), help="items of each tenant of `tenants`"
    )
    parser.add_argument("--clients", type=int, default=2_000, help="tenants of `pareto`")
    parser.add_argument("--load", type=float, default=1.1, help="what they send, in parts of what consumers can do")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long `pareto` and `flood` send")
    parser.add_argument("--flood", type=int, default=1_000_000, help="items that wait in `flood`")
    parser.add_argument("--rate", type=float, default=10.0, help="first items of other tenants a second in `flood`")
    parser.add_argument("--no-plots", action="store_true")
    return parser


if __name__ == "__main__":
    with stop_on_signals():
        main()
