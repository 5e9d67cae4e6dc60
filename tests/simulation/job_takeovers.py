"""Plays hosts that take a bulk job from each other, and checks that none overwrites what its successor has recorded.

Three hosts work on one record. They are frozen for longer than their sessions, killed and replaced,
and cannot reach the record, or lose its answers. The checks, at each write of the record: the run,
the cursor and the counts never go back, and a job is done only when each item was changed. At the
end each item was changed once. `python -m tests.simulation.job_takeovers` plays the seeds;
`--plant NAME` plants a bug first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random
from typing import Final

from foqs.queue.bulk_jobs import bulk_job_worker
from foqs.queue.bulk_jobs.bulk_job import BulkJobRecord, BulkJobRecords, BulkJobState
from foqs.queue.bulk_jobs.bulk_job_document import parse_jobs
from foqs.queue.bulk_jobs.bulk_job_transitions import BulkJobProgress
from tests.simulation.planting import plant
from tests.simulation.played_seeds import play_seeds
from tests.support.bulk_job_world import BulkJobWorld, Member, NotedItems, SharedDocuments
from tests.support.virtual_time import run_virtual

SEEDS: Final = range(16)
ITEMS: Final = 600
RATE_PER_S: Final = 20
SESSION_S: Final = 1.5
"""The others learn after this time that a host is frozen."""
UNTIL_S: Final = 3_600.0


def play(seed: int) -> tuple[list[str], int]:
    """Play one seed. Returns the violations and the number of takeovers."""
    violations: list[str] = []
    takeovers: list[int] = []

    async def main() -> None:
        items = NotedItems(ITEMS)
        documents = _WatchedDocuments(items, violations)
        world = BulkJobWorld(items, documents)
        troubles = _Troubles(world, Random(seed))
        await world.start(rate_per_s=RATE_PER_S)
        playing = asyncio.ensure_future(troubles.play())
        job = await world.ended()
        playing.cancel()
        troubles.end()
        takeovers.append(job.run - 1)
        if job.state is not BulkJobState.DONE or not items.is_each_changed_once:
            changed = [len(walks) for walks in items.walks]
            violations.append(f"the job is {job.state.value}, and its items were changed {changed} times")
        if not job.counts.at_least and job.counts.changed != ITEMS:
            violations.append(f"the job counts {job.counts.changed} changes, there were {ITEMS}")

    run_virtual(main, until_s=UNTIL_S)
    return violations, sum(takeovers)


class _WatchedDocuments(SharedDocuments):
    """Compares each record with the one before."""

    def __init__(self, items: NotedItems, violations: list[str]) -> None:
        super().__init__()
        self._items = items
        self._violations = violations

    async def replace(self, name: str, data: bytes, version: int | None) -> int:
        before = self.jobs()
        try:
            return await super().replace(name, data, version)
        finally:
            if self.jobs() == parse_jobs(data):
                self._compare(before, self.jobs())

    def _compare(self, before: BulkJobRecords, after: BulkJobRecords) -> None:
        for former, job in ((before.by_id[name], job) for name, job in after.by_id.items() if name in before.by_id):
            if (job.run, *_place(job)) < (former.run, *_place(former)) or _place(job) < _place(former):
                self._violations.append(f"a host wrote {_shown(job)} over {_shown(former)}")
            if job.state is BulkJobState.DONE and not self._items.is_each_changed_once:
                self._violations.append(f"the job is done at {_shown(job)}, and not all items were changed")


def _place(job: BulkJobRecord) -> tuple[int, int, int]:
    """Return how far a job has come: walk, place in it, and changes."""
    walk, place = (0, 0) if job.cursor is None else map(int, job.cursor.split(":"))
    return walk, place, job.counts.changed


def _shown(job: BulkJobRecord) -> str:
    return f"run {job.run}, cursor {job.cursor}, {job.counts.changed} changes"


class _Troubles:
    """Freezes, kills and replaces hosts, and takes the record away from all of them."""

    def __init__(self, world: BulkJobWorld, rng: Random) -> None:
        self._world = world
        self._rng = rng
        self._started = 0
        self._members: list[Member] = [self._start() for _ in range(3)]

    async def play(self) -> None:
        rng, world = self._rng, self._world
        while True:
            await asyncio.sleep(rng.uniform(0.3, 3.0))
            running = [member for member in self._members if member.process.runs]
            owner = world.job().owner
            if rng.random() < 0.5:
                running = [member for member in running if member.owner == owner]
            kind = rng.random()
            if kind < 0.6 and running:
                await self._freeze(rng.choice(running), rng.uniform(0.2, 12.0))
            elif kind < 0.75 and running:
                member = rng.choice(running)
                self._members.remove(member)
                world.kill(member)
                self._members.append(self._start())
            elif kind < 0.9:
                world.documents.lost_replies = 1
            else:
                world.documents.is_down = True
                await asyncio.sleep(rng.uniform(0.2, 3.0))
                world.documents.is_down = False

    def end(self) -> None:
        for member in self._members:
            member.process.kill()

    def _start(self) -> Member:
        self._started += 1
        return self._world.add(f"host-{self._started}")

    async def _freeze(self, member: Member, seconds: float) -> None:
        """Freeze a host. If its session ends meanwhile, the others may take its job."""
        members, nonce = self._world.members, member.owner.nonce
        member.process.freeze()
        await asyncio.sleep(min(seconds, SESSION_S))
        if seconds > SESSION_S:
            members.remove(nonce)
            await asyncio.sleep(seconds - SESSION_S)
            members.append(nonce)
        member.process.thaw()


# ---------------------------------------------------------------------- bugs


def former_host_writes() -> None:
    """A host that lost a job writes its progress over that of its successor."""

    def report(
        jobs: BulkJobRecords, job_id: str, progress: BulkJobProgress, now_ms: int
    ) -> tuple[BulkJobRecords, BulkJobRecord]:
        job = jobs.by_id.get(job_id)
        return original(jobs, job_id, progress if job is None else replace(progress, run=job.run), now_ms)

    original = plant(bulk_job_worker, "report", report)


BUGS: Final[Mapping[str, Callable[[], None]]] = {"former-host-writes": former_host_writes}


def main() -> int:
    return play_seeds(__doc__, SEEDS, play, "takeovers", BUGS)


if __name__ == "__main__":
    raise SystemExit(main())
