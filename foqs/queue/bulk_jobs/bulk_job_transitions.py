"""The transitions of the recorded jobs: each takes all jobs and returns the next ones. What a job does to items is a `BulkChange`.

Always true: the result is the same object if nothing changes, so that a change can be
repeated safely; the numbers of jobs stay within the limits; only the host of a job's
last run writes its cursor and counts. Pure.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final

from foqs.queue.bulk_jobs.bulk_job import (
    NEXT_STATE,
    BulkJobCommand,
    BulkJobCounts,
    BulkJobOwner,
    BulkJobRecord,
    BulkJobRecords,
    BulkJobSpec,
    BulkJobState,
    shorten,
)
from foqs_contract.errors import InvalidArgument, KeyConflict, LimitExceeded, NotFound

LIVE_MAX: Final = 64
LIVE_PER_NAMESPACE_MAX: Final = 8
"""The most live jobs of a namespace. Beyond its first one, it also has no more than places are left for others."""
ENDED_MAX: Final = 32
ENDED_PER_NAMESPACE_MAX: Final = 16


class BulkJobTaken(Exception):
    """The host has given the job up, another host has taken it, or its record is gone. Nothing is written; the caller stops its work on it."""


@dataclass(slots=True, frozen=True)
class BulkJobProgress:
    """The report of the host of one run. The values are absolute, so a report may be repeated.

    Attributes:
        run: the run of the host.
        end: DONE or FAILED if the job ends; None if it goes on.
        is_leaving: the host gives the job up.
    """

    run: int
    cursor: str | None
    counts: BulkJobCounts
    refusal: str | None = None
    problem: str | None = None
    end: BulkJobState | None = None
    is_leaving: bool = False


def start(jobs: BulkJobRecords, job: BulkJobRecord) -> tuple[BulkJobRecords, BulkJobRecord]:
    """Add a job, and forget the oldest ended ones beyond the limits.

    Returns:
        The jobs, and the new job; or the job that was started before with the same key.

    Raises:
        KeyConflict: the key belongs to a job that does something else.
        LimitExceeded: too many jobs are live, or the job is exclusive and another such job is live.
    """
    spec = job.spec
    same_namespace = jobs.of_namespace(spec.namespace)
    for other in same_namespace:
        if other.spec.start_key == spec.start_key:
            if _work(other.spec) != _work(spec):
                raise KeyConflict("another job was started with this key; give another random text", field="start_key")
            return jobs, other
    live = [other for other in same_namespace if other.state.is_live]
    _check_place(len(live), sum(other.state.is_live for other in jobs.by_id.values()))
    if spec.is_exclusive and any(_is_alike(other, job) for other in live):
        raise LimitExceeded(
            "a job with the same action on this topic is running or interrupted; wait until it ends, or cancel it",
            field="is_exclusive",
        )
    return _without_oldest(replace(jobs, by_id={**jobs.by_id, job.id: job})), job


def _check_place(own: int, live: int) -> None:
    """Check that there is a place for another job of a namespace that has `own` of the live ones. Raises `LimitExceeded`."""
    free = LIVE_MAX - live - 1
    if own >= LIVE_PER_NAMESPACE_MAX:
        raise LimitExceeded(
            f"the namespace has {own} bulk jobs that are running or interrupted, and may have no more; "
            "wait until one ends, or cancel one",
            field="jobs",
        )
    if free < 0 or (own and own + 1 > free):
        raise LimitExceeded(
            f"{live} bulk jobs are running or interrupted, {own} of them of this namespace, and the {LIVE_MAX - live} "
            "places that are left are for namespaces with fewer; wait until one ends, or cancel one",
            field="jobs",
        )


def _work(spec: BulkJobSpec) -> tuple[object, ...]:
    return spec.item_filter, spec.change, spec.counts_for


def _is_alike(other: BulkJobRecord, job: BulkJobRecord) -> bool:
    return (
        other.spec.change.action == job.spec.change.action
        and other.spec.item_filter.topic_names == job.spec.item_filter.topic_names
    )


def _without_oldest(jobs: BulkJobRecords) -> BulkJobRecords:
    """Return the jobs without ended ones beyond the limits. The oldest of the namespace with the most goes first."""
    ended: dict[str, deque[str]] = {}
    """The ids of ended jobs by namespace, the oldest first."""
    for job in jobs.by_id.values():
        if not job.state.is_live:
            ended.setdefault(job.spec.namespace, deque()).append(job.id)
    forgotten: set[str] = set()
    in_all = sum(map(len, ended.values()))
    while ended:
        most = max(ended.values(), key=len)
        if in_all <= ENDED_MAX and len(most) <= ENDED_PER_NAMESPACE_MAX:
            break
        forgotten.add(most.popleft())
        in_all -= 1
    if not forgotten:
        return jobs
    return replace(jobs, by_id={job_id: job for job_id, job in jobs.by_id.items() if job_id not in forgotten})


def control(
    jobs: BulkJobRecords, namespace: str, job_id: str, command: BulkJobCommand, now_ms: int
) -> tuple[BulkJobRecords, BulkJobRecord]:
    """Apply a command. Returns the jobs, and the job.

    Raises:
        NotFound: the namespace has no such job.
        InvalidArgument: the job has ended otherwise.
    """
    job = jobs.by_id.get(job_id)
    if job is None or job.spec.namespace != namespace:
        raise NotFound(
            "the namespace has no job with this id; jobs that ended long ago are forgotten, and foqs jobs list shows the others",
            field="id",
        )
    state = NEXT_STATE.get((job.state, command))
    if state is None:
        raise InvalidArgument(f"the job is {job.state.value}; start a new one", field="command")
    if state is job.state:
        return jobs, job
    job = replace(job, state=state, problem=None, changed_at_ms=now_ms, ended_at_ms=None if state.is_live else now_ms)
    return _without_oldest(_with(jobs, job)), job


def take_jobs(
    jobs: BulkJobRecords,
    owner: BulkJobOwner,
    tier: str,
    missing: Collection[str],
    room: int,
    now_ms: int,
    overdue: Collection[str] = (),
) -> tuple[BulkJobRecords, list[BulkJobRecord]]:
    """Give a host running jobs that have no owner, or a missing one.

    The host gets up to `room` of them, those first whose namespaces have the fewest jobs with an owner. Beyond that it
    gets one overdue job of each namespace that has none with an owner. A job that does not run and whose owner is
    missing loses its owner.

    Args:
        missing: the nonces of owners that are gone for certain.
        overdue: the ids of jobs for which no host had room.

    Returns:
        The jobs, and those that the host has now taken.
    """
    by_id = dict(jobs.by_id)
    taken: list[BulkJobRecord] = []
    waiting: list[BulkJobRecord] = []
    working = Counter[str]()
    """By namespace: its running jobs with an owner."""
    for job in jobs.by_id.values():
        is_lost = job.owner is not None and job.owner.nonce in missing
        is_running = job.state is BulkJobState.RUNNING
        if job.owner is not None and not is_lost:
            working[job.spec.namespace] += is_running
        elif job.tier == tier and is_running:
            waiting.append(replace(job, counts=_without_last_pages(job)) if is_lost else job)
        elif job.tier == tier and is_lost:
            by_id[job.id] = replace(job, owner=None, counts=_without_last_pages(job), changed_at_ms=now_ms)
    while waiting:
        job = min(waiting, key=lambda job: working[job.spec.namespace])
        waiting.remove(job)
        if len(taken) < room or (job.id in overdue and not working[job.spec.namespace]):
            by_id[job.id] = replace(job, owner=owner, run=job.run + 1, changed_at_ms=now_ms)
            taken.append(by_id[job.id])
            working[job.spec.namespace] += 1
    return (replace(jobs, by_id=by_id), taken) if by_id != jobs.by_id else (jobs, taken)


def waiting_jobs(jobs: BulkJobRecords, tier: str, missing: Collection[str]) -> set[str]:
    """Return the ids of the running jobs of a tier that no host works on."""
    return {
        job.id
        for job in jobs.by_id.values()
        if job.tier == tier and job.state is BulkJobState.RUNNING and (job.owner is None or job.owner.nonce in missing)
    }


def report(
    jobs: BulkJobRecords, job_id: str, progress: BulkJobProgress, now_ms: int
) -> tuple[BulkJobRecords, BulkJobRecord]:
    """Write the progress of a run. Returns the jobs, and the job: its state may have been changed by a command.

    The host gives the job up if it leaves, the job ends, or the job does not run any more. Then it cannot report again.

    Raises:
        BulkJobTaken: the record has another run or no owner, or is gone.
    """
    job = jobs.by_id.get(job_id)
    if job is None or job.owner is None or job.run != progress.run:
        raise BulkJobTaken(job_id)
    state = job.state
    ended_at_ms = job.ended_at_ms
    if progress.end is not None and state.is_live:
        state, ended_at_ms = progress.end, now_ms
    is_given_up = progress.is_leaving or progress.end is not None or state is not BulkJobState.RUNNING
    written = replace(
        job,
        state=state,
        ended_at_ms=ended_at_ms,
        cursor=progress.cursor,
        counts=progress.counts,
        refusal=shorten(progress.refusal),
        problem=shorten(progress.problem) if state in (BulkJobState.RUNNING, BulkJobState.FAILED) else None,
        owner=None if is_given_up else job.owner,
    )
    if written == job:
        return jobs, job
    written = replace(written, changed_at_ms=now_ms)
    return _without_oldest(_with(jobs, written)), written


def release(jobs: BulkJobRecords, nonce: str, now_ms: int) -> BulkJobRecords:
    """Take the owner with this nonce, which stops, from the jobs that it has not given up. Return the jobs.

    The result of a page may be lost.
    """
    owned = [job for job in jobs.by_id.values() if job.owner is not None and job.owner.nonce == nonce]
    if not owned:
        return jobs
    freed = {job.id: replace(job, owner=None, counts=_without_last_pages(job), changed_at_ms=now_ms) for job in owned}
    return replace(jobs, by_id={**jobs.by_id, **freed})


def _without_last_pages(job: BulkJobRecord) -> BulkJobCounts:
    """Return the counts of a job whose last pages may not be recorded. Only a count finds the same items again."""
    return job.counts if job.spec.is_count else replace(job.counts, at_least=True)


def _with(jobs: BulkJobRecords, job: BulkJobRecord) -> BulkJobRecords:
    return replace(jobs, by_id={**jobs.by_id, job.id: job})
