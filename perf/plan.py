"""How long does the planner take for a large cluster? `python -m perf.plan`

Measures one call of `shardmgr.plan.next_plan` in each phase of a cluster: nothing is
planned yet, nothing is to be done, a host has died, a tenth of the hosts has joined,
a host is drained; with equal shards, and with shards of a hundred weights. Also
measures the plan's way to JSON and back, which every host does.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Final

from perf.lib.report import Report
from shardmgr.documents import parse_plan, render_plan
from shardmgr.model import HeldShard, Layout, Member, Plan, ShardSpec
from shardmgr.plan import next_plan

SHOWN: Final = ("moment", "weights", "shards", "hosts", "median_ms", "worst_ms", "changed")
_MOVES_MAX: Final = 10


def main() -> None:
    options = _parser().parse_args()
    report = Report("plan")
    for weights in (1, 100):
        _measure(report, options.shards, options.hosts, weights, options.rounds)
    report.table(SHOWN)


def _measure(report: Report, shards: int, hosts: int, weights: int, rounds: int) -> None:
    layout = Layout({n: ShardSpec(n, f"db{n % 8}", weight=1 + n % weights) for n in range(shards)})
    members = [Member(f"host-{n:03}", f"{n:032x}", f"host-{n:03}:7000") for n in range(hosts)]
    first = next_plan(layout, Plan(), members, frozenset(), 0)
    serving = _served(members, first)
    drained = replace(layout, drained=frozenset({members[0].name}))
    few = members[: hosts - max(1, hosts // 10)]
    narrow = next_plan(layout, Plan(), few, frozenset(), 0)
    moments: dict[str, tuple[Layout, Plan, list[Member]]] = {
        "nothing planned yet": (layout, Plan(), members),
        "nothing to be done": (layout, first, serving),
        "a host has died": (layout, first, serving[1:]),
        "a tenth has joined": (layout, narrow, _served(members, narrow)),
        "a host is drained": (drained, first, serving),
    }
    for moment, (wanted, plan, there) in moments.items():

        def call(wanted: Layout = wanted, plan: Plan = plan, there: list[Member] = there) -> Plan:
            return next_plan(wanted, plan, there, frozenset(), _MOVES_MAX)

        after = call()
        changed = sum(each != plan.assignments.get(number) for number, each in after.assignments.items())
        _add(report, moment, weights, shards, hosts, _times(call, rounds), changed)
    text = render_plan(first)
    _add(report, "to JSON", weights, shards, hosts, _times(lambda: render_plan(first), rounds), 0)
    _add(report, "from JSON", weights, shards, hosts, _times(lambda: parse_plan(text), rounds), 0)


def _served(members: list[Member], plan: Plan) -> list[Member]:
    """Return the members as they announce themselves once they serve the shards of the plan."""
    holdings: dict[str, dict[int, HeldShard]] = {}
    for number, assignment in plan.assignments.items():
        holdings.setdefault(assignment.nonce, {})[number] = HeldShard(assignment.epoch, "owned")
    return [replace(member, held_shards=holdings.get(member.nonce, {})) for member in members]


def _times(call: Callable[[], object], rounds: int) -> list[float]:
    taken = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        taken.append((time.perf_counter() - start) * 1000)
    return taken


def _add(
    report: Report, moment: str, weights: int, shards: int, hosts: int, times_ms: list[float], changed: int
) -> None:
    report.add(
        {"moment": moment, "weights": weights, "shards": shards, "hosts": hosts},
        {"median_ms": round(median(times_ms), 2), "worst_ms": round(max(times_ms), 2), "changed": changed},
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m perf.plan", description=__doc__.partition("\n")[0])
    parser.add_argument("--shards", type=int, default=1_000)
    parser.add_argument("--hosts", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=20)
    return parser


if __name__ == "__main__":
    main()
