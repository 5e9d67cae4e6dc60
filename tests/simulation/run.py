"""Runs seeds of the simulation: `python -m tests.simulation.run --seeds 1000 --base 0`.

Each seed is a separate run; the same seed gives the same history, byte for byte.
Exits 1 if any seed has a violation, and prints all events of the items involved.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import multiprocessing
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.simulation import (
    event_counts,
    full_disk,
    group_policies,
    key_windows,
    payload_weights,
    planted_atomic,
    planted_bytes,
    planted_completions,
    planted_durability,
    planted_gossip,
    planted_groups,
    planted_holes,
    planted_incarnations,
    planted_journal,
    planted_moves,
    planted_order,
    planted_ownership,
    planted_regions,
    planted_session,
    planted_surplus,
    planted_timers,
    planted_turns,
)
from tests.simulation.cluster import SimulatedCluster
from tests.simulation.faults import Faults
from tests.simulation.fleet import SimulatedFleet
from tests.simulation.fleet_run import FLEET_PLAN, FleetRun
from tests.simulation.heavy import HEAVY_PLAN, HeavyCluster, HeavyRun
from tests.simulation.planted import BUGS, FAULTS, Bug, shows
from tests.simulation.regions import SimulatedRegions
from tests.simulation.regions_run import REGIONS_PLAN, RegionsRun
from tests.simulation.workload import Plan, Run
from tests.support import (
    access_rules,
    admin_rules,
    atomic_rules,
    completion_rules,
    explanation_rules,
    faulty_database,
    group_rules,
)
from tests.support.checker import check_histories, summary
from tests.support.history import read
from tests.support.item_histories import sort_by_item
from tests.support.virtual_time import SimulatedLoop, run_virtual

UNTIL_S: Final = 200.0
"""The limit of virtual time: four times the length of a normal run."""


@dataclass(slots=True, frozen=True)
class Result:
    """The result of one seed."""

    seed: int
    violations: list[str]
    counts: dict[str, int]
    history: str | None
    """The history as JSON lines, if it was requested."""

    def line(self) -> str:
        return f"seed {self.seed}: " + ", ".join(f"{name} {count}" for name, count in self.counts.items())


def run_seed(
    seed: int,
    plan: Plan | None = None,
    *,
    fleet: bool = False,
    heavy: bool = False,
    journal: bool = False,
    atomic: bool = False,
    completions: bool = False,
    groups: bool = False,
    regions: bool = False,
    keep_history: bool = False,
) -> Result:
    """Play one seed and check its history.

    Args:
        fleet: with several hosts, instead of one standalone host.
        heavy: with long payloads, on one standalone host.
        journal: the stores journal.
        atomic: with a client that makes atomic calls.
        completions: with a client that completes items.
        groups: with a client whose items have groups.
        regions: with `fleet`, the hosts are in three regions, and each database has a server in each.
    """
    runs: list[Run] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        if regions:
            runs.append(RegionsRun(SimulatedRegions(loop, seed), seed, plan or REGIONS_PLAN))
        elif fleet:
            runs.append(FleetRun(SimulatedFleet(loop, seed), seed, plan or FLEET_PLAN))
        elif heavy:
            runs.append(HeavyRun(HeavyCluster(loop, seed), seed, plan or HEAVY_PLAN))
        else:
            runs.append(Run(SimulatedCluster(loop, seed), seed, plan or Plan()))
        runs[0].cluster.journals = journal
        runs[0].has_atomic_calls = atomic
        runs[0].has_completions = completions
        runs[0].has_groups = groups
        runs[0].has_turns = group_policies.are_fair()
        runs[0].judges_turns = group_policies.begin(seed)
        await runs[0].play()

    event_counts.install()
    event_counts.reset()
    payload_weights.install()
    payload_weights.reset()
    key_windows.install()
    key_windows.reset()
    full_disk.install()
    full_disk.reset()
    crash: list[str] = []
    with Faults() as faults:
        try:
            run_virtual(main, until_s=UNTIL_S)
        except Exception as error:
            crash.append(f"the run did not end: {error!r}")
    run = runs[0]
    histories = sort_by_item(read(run.history.events))
    counts = {
        "calls": run.calls,
        "items": run.items,
        "kills": run.cluster.kills,
        "drains": run.cluster.drains,
        "zombies": run.cluster.zombies,
        "steps": run.cluster.loop.steps,
        "turns judged": run.turns_judged,
    }
    counts |= {name: event_counts.COUNTS[name] for name in (*event_counts.NAMES, *event_counts.LIMIT_NAMES)}
    counts |= {name: sum(each.counts[name] for each in run.cluster.all_servers()) for name in faulty_database.NAMES}
    if isinstance(run.cluster, SimulatedFleet):
        counts |= run.cluster.counts
    counts |= (
        admin_rules.count_occurrences(histories)
        | access_rules.count_occurrences(histories)
        | explanation_rules.count_occurrences(histories)
        | atomic_rules.count_occurrences(histories)
        | completion_rules.count_occurrences(histories)
        | group_rules.count_occurrences(histories)
        | summary(histories)
    )
    return Result(
        seed,
        [
            *crash,
            *faults.found,
            *run.cluster.disorder,
            *payload_weights.OVER,
            *key_windows.EARLY,
            *full_disk.DELAYED,
            *run.differences,
            *(
                str(each)
                for each in check_histories(histories, run.cluster.bounds())
                if run.cluster.excused.isdisjoint(each.items)
            ),
            *group_policies.violations(histories, run.cluster.bounds()),
        ],
        counts,
        run.history.text() if keep_history else None,
    )


def _bugs(fleet: bool) -> Mapping[str, Bug]:
    fleet_modules = (planted_ownership, planted_regions, planted_session, planted_surplus, planted_gossip)
    fleet_bugs = {name: bug for module in fleet_modules for name, bug in module.BUGS.items()}
    standalone_bugs = {
        **BUGS,
        **planted_atomic.BUGS,
        **planted_bytes.BUGS,
        **planted_completions.BUGS,
        **planted_groups.BUGS,
        **planted_groups.JOURNAL_BUGS,
        **planted_groups.LIMIT_BUGS,
        **planted_holes.BUGS,
        **planted_incarnations.BUGS,
        **planted_moves.BUGS,
        **planted_order.BUGS,
        **planted_timers.BUGS,
        **planted_turns.BUGS,
        **planted_journal.BUGS,
    }
    return {**(fleet_bugs if fleet else standalone_bugs), **planted_durability.BUGS, **FAULTS}


def _work(task: tuple[int, bool, bool, bool, bool, bool, bool, bool, str | None, bool]) -> Result:
    seed, fleet, heavy, journal, atomic, completions, groups, regions, bug, keep_history = task
    logging.disable(logging.WARNING)
    gc.disable()  # each seed has its own process
    if bug is not None:
        _bugs(fleet)[bug].plant()
    return run_seed(
        seed,
        fleet=fleet,
        heavy=heavy,
        journal=journal,
        atomic=atomic,
        completions=completions,
        groups=groups,
        regions=regions,
        keep_history=keep_history,
    )


def run_seeds(
    seeds: Sequence[int],
    jobs: int,
    progress: bool,
    fleet: bool,
    heavy: bool = False,
    journal: bool = False,
    atomic: bool = False,
    completions: bool = False,
    groups: bool = False,
    regions: bool = False,
    bug: str | None = None,
    keep_history: bool = False,
) -> list[Result]:
    """Play seeds, each in its own process. With a planted bug, stop at the first violation that shows it."""
    results: list[Result] = []
    started = time.monotonic()
    context = multiprocessing.get_context("fork")
    with context.Pool(jobs, maxtasksperchild=1) as pool:
        tasks = [
            (seed, fleet, heavy, journal, atomic, completions, groups, regions, bug, keep_history) for seed in seeds
        ]
        for result in pool.imap_unordered(_work, tasks):
            results.append(result)
            if progress and (len(results) % 10 == 0 or result.violations):
                rate = len(results) / (time.monotonic() - started)
                first = f"; seed {result.seed}: {result.violations[0]}" if result.violations else ""
                print(f"{len(results)}/{len(seeds)} seeds, {rate:.2f} a second{first}", file=sys.stderr, flush=True)
            if bug is not None and shows(_bugs(fleet)[bug], result.violations):
                pool.terminate()
                break
    return sorted(results, key=lambda result: result.seed)


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs seeds of the simulation and checks their histories.")
    parser.add_argument("--seeds", type=int, default=1000, help="number of seeds (default 1000)")
    parser.add_argument("--base", type=int, default=0, help="first seed (default 0)")
    parser.add_argument("--first", type=int, help="the seed that is played first, if it is one of them")
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count(), help="number of parallel processes")
    parser.add_argument(
        "--fleet", action="store_true", help="simulate several hosts of one cluster, not a standalone host"
    )
    parser.add_argument("--heavy", action="store_true", help="use long payloads, and a payload limit that changes")
    parser.add_argument("--journal", action="store_true", help="let the stores journal")
    parser.add_argument("--atomic", action="store_true", help="let a client make atomic calls")
    parser.add_argument("--completions", action="store_true", help="let a client complete items")
    parser.add_argument("--groups", action="store_true", help="let the items of a client have groups")
    parser.add_argument("--limits", action="store_true", help="limit the leases of groups")
    parser.add_argument("--fair", action="store_true", help="let groups take turns")
    parser.add_argument(
        "--regions",
        action="store_true",
        help="with --fleet: let the hosts be in three regions, with a server of each database in each",
    )
    parser.add_argument("--history", type=Path, help="with one seed: write its history to this file")
    parser.add_argument(
        "--plant",
        help="plant a bug of tests/simulation/planted*.py; some show only with --fleet or --heavy",
    )
    options = parser.parse_args()
    if options.regions and not options.fleet:
        parser.error("--regions is a kind of --fleet: give both")
    seeds = sorted(range(options.base, options.base + options.seeds), key=lambda seed: seed != options.first)
    keep_history = options.history is not None
    if options.limits or options.fair:
        group_policies.install(has_limits=options.limits, is_fair=options.fair)
    results = run_seeds(
        seeds,
        options.jobs,
        True,
        options.fleet,
        options.heavy,
        options.journal,
        options.atomic,
        options.completions,
        options.groups,
        options.regions,
        options.plant,
        keep_history,
    )
    if options.history and results[0].history is not None:
        options.history.write_text(results[0].history, encoding="utf-8")
    totals: dict[str, int] = {}
    for result in results:
        for name, count in result.counts.items():
            totals[name] = totals.get(name, 0) + count
    failed = [result for result in results if result.violations]
    for result in failed:
        print(result.line())
        for violation in result.violations:
            print(violation)
    least = {name: min(result.counts[name] for result in results) for name in ("calls", "items", "kills")}
    print(
        f"{len(results)} seeds from {options.base}: " + ", ".join(f"{name} {count}" for name, count in totals.items())
    )
    happened = {name: sum(result.counts[name] > 0 for result in results) for name in totals}
    print("seeds in which it happened: " + ", ".join(f"{name} {count}" for name, count in happened.items()))
    print("least of any seed: " + ", ".join(f"{name} {count}" for name, count in least.items()))
    print(f"{len(results) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
