"""The pure changes of the recorded jobs: starts, commands, owners and reports."""

from __future__ import annotations

import pytest

from foqs.core.items.row_filter import RowFilter
from foqs.queue.bulk_jobs.bulk_job import (
    NEXT_STATE,
    BulkJobCommand,
    BulkJobCounts,
    BulkJobOwner,
    BulkJobRecord,
    BulkJobRecords,
    BulkJobState,
)
from foqs.queue.bulk_jobs.bulk_job_transitions import (
    ENDED_MAX,
    ENDED_PER_NAMESPACE_MAX,
    LIVE_MAX,
    LIVE_PER_NAMESPACE_MAX,
    BulkJobProgress,
    BulkJobTaken,
    control,
    release,
    report,
    start,
    take_jobs,
)
from foqs_contract.errors import InvalidArgument, KeyConflict, LimitExceeded, NotFound
from tests.support.bulk_job_world import job_of

A, B = BulkJobOwner("a", "1"), BulkJobOwner("b", "2")


def started(*jobs: BulkJobRecord) -> BulkJobRecords:
    found = BulkJobRecords()
    for job in jobs:
        found, _ = start(found, job)
    return found


def one(**changes: object) -> BulkJobRecords:
    return BulkJobRecords({job.id: job for job in [job_of(1, **changes)]})


def only(jobs: BulkJobRecords) -> BulkJobRecord:
    [job] = jobs.by_id.values()
    return job


def test_repeated_start_with_the_same_key_returns_the_first_job() -> None:
    jobs, first = start(BulkJobRecords(), job_of(1, start_key="k"))
    again, second = start(jobs, job_of(2, start_key="k"))
    assert again is jobs
    assert second == first


def test_start_key_of_a_job_that_does_something_else_is_a_conflict() -> None:
    jobs = started(job_of(1, start_key="k"))
    with pytest.raises(KeyConflict):
        start(jobs, job_of(2, start_key="k", item_filter=RowFilter("u")))


def test_start_key_of_another_namespace_is_another_key() -> None:
    jobs = started(job_of(1, start_key="k"), job_of(2, start_key="k", namespace="other"))
    assert len(jobs.by_id) == 2


def test_live_jobs_of_a_namespace_are_bounded_and_interrupted_ones_count() -> None:
    jobs = started(*(job_of(number) for number in range(LIVE_PER_NAMESPACE_MAX)))
    jobs, _ = control(jobs, "default", job_of(0).id, BulkJobCommand.INTERRUPT, 5)
    with pytest.raises(LimitExceeded) as refused:
        start(jobs, job_of(99))
    assert refused.value.field == "jobs"
    jobs, _ = control(jobs, "default", job_of(0).id, BulkJobCommand.CANCEL, 5)
    jobs, _ = start(jobs, job_of(99))
    assert len(jobs.by_id) == LIVE_PER_NAMESPACE_MAX + 1


def fill(
    jobs: BulkJobRecords, namespace: str, state: BulkJobState = BulkJobState.RUNNING
) -> tuple[BulkJobRecords, int]:
    """Start jobs of a namespace until one is refused. Returns the jobs, and how many were started."""
    for count in range(LIVE_MAX + 1):
        try:
            jobs, _ = start(jobs, job_of(len(jobs.by_id), start_key=f"{count}", namespace=namespace, state=state))
        except LimitExceeded as refused:
            assert refused.field == "jobs"
            return jobs, count
    raise AssertionError("a namespace may have any number of live jobs")


def test_live_jobs_of_all_namespaces_are_bounded_and_the_last_places_are_for_those_with_the_fewest() -> None:
    jobs, counts = BulkJobRecords(), list[int]()
    while not counts or counts[-1]:
        jobs, count = fill(jobs, f"n{len(counts)}")
        counts.append(count)
    assert sum(counts) == len(jobs.by_id) == LIVE_MAX
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == LIVE_PER_NAMESPACE_MAX
    assert counts[-2] == 1
    assert len(counts) > 8


def test_interrupted_jobs_of_four_namespaces_leave_places_for_the_others() -> None:
    jobs = BulkJobRecords()
    for number in range(4):
        jobs, count = fill(jobs, f"noisy-{number}", BulkJobState.INTERRUPTED)
        assert count == LIVE_PER_NAMESPACE_MAX
    assert fill(jobs, "quiet")[1] == LIVE_PER_NAMESPACE_MAX


def test_oldest_ended_jobs_are_forgotten_in_each_namespace_and_in_all() -> None:
    jobs = BulkJobRecords()
    for number in range(ENDED_MAX * 2):
        jobs, job = start(jobs, job_of(number, namespace=f"n{number % 4}"))
        jobs, _ = control(jobs, job.spec.namespace, job.id, BulkJobCommand.CANCEL, number)
    assert list(jobs.by_id) == [job_of(number).id for number in range(ENDED_MAX, ENDED_MAX * 2)]
    jobs = BulkJobRecords()
    for number in range(ENDED_PER_NAMESPACE_MAX * 2):
        jobs, job = start(jobs, job_of(number))
        jobs, _ = control(jobs, "default", job.id, BulkJobCommand.CANCEL, number)
    assert len(jobs.by_id) == ENDED_PER_NAMESPACE_MAX


def test_ended_jobs_of_one_namespace_do_not_displace_those_of_others() -> None:
    jobs = BulkJobRecords()
    for number in range(ENDED_MAX * 3):
        namespace = f"quiet-{number}" if number < 3 else f"busy-{number % 4}"
        jobs, job = start(jobs, job_of(number, namespace=namespace))
        jobs, _ = control(jobs, namespace, job.id, BulkJobCommand.CANCEL, number)
    assert len(jobs.by_id) == ENDED_MAX
    assert all(jobs.of_namespace(f"quiet-{number}") for number in range(3))


def test_live_job_is_never_forgotten() -> None:
    jobs, live = start(BulkJobRecords(), job_of(1))
    for number in range(2, 200):
        jobs, job = start(jobs, job_of(number))
        jobs, _ = control(jobs, "default", job.id, BulkJobCommand.CANCEL, number)
    assert live.id in jobs.by_id


def test_exclusive_job_is_refused_while_one_of_the_same_action_and_topic_is_live() -> None:
    jobs = started(job_of(1, item_filter=RowFilter("t")))
    with pytest.raises(LimitExceeded) as refused:
        start(jobs, job_of(2, item_filter=RowFilter("t"), is_exclusive=True))
    assert refused.value.field == "is_exclusive"
    jobs, _ = start(jobs, job_of(3, item_filter=RowFilter("u"), is_exclusive=True))
    jobs, _ = control(jobs, "default", job_of(1).id, BulkJobCommand.CANCEL, 1)
    start(jobs, job_of(2, item_filter=RowFilter("t"), is_exclusive=True))


@pytest.mark.parametrize("state", BulkJobState)
@pytest.mark.parametrize("command", BulkJobCommand)
def test_command_leads_to_the_state_of_the_table_or_is_refused(state: BulkJobState, command: BulkJobCommand) -> None:
    jobs = one(state=state)
    expected = NEXT_STATE.get((state, command))
    if expected is None:
        with pytest.raises(InvalidArgument):
            control(jobs, "default", only(jobs).id, command, 7)
        return
    changed, job = control(jobs, "default", only(jobs).id, command, 7)
    assert job.state is expected
    assert (changed is jobs) == (expected is state)
    again, _ = control(changed, "default", job.id, command, 8)
    assert again is changed
    if expected is not state:
        assert job.ended_at_ms == (None if expected.is_live else 7)


def test_job_of_another_namespace_cannot_be_controlled() -> None:
    with pytest.raises(NotFound):
        control(one(namespace="other"), "default", job_of(1).id, BulkJobCommand.CANCEL, 1)
    with pytest.raises(NotFound):
        control(BulkJobRecords(), "default", "0" * 16, BulkJobCommand.CANCEL, 1)


def test_host_without_room_takes_one_overdue_job_of_each_namespace_without_a_job_at_work() -> None:
    jobs = started(*(job_of(number, namespace=name) for number, name in enumerate(("x", "x", "y", "y", "z"))))
    jobs, _ = take_jobs(jobs, B, "default", (), 1, 1)
    ids = list(jobs.by_id)
    jobs, taken = take_jobs(jobs, A, "default", (), 0, 9, overdue=ids[:4])
    assert [job.id for job in taken] == [ids[2]], "x has one at work, the job of z is not overdue"
    jobs, taken = take_jobs(jobs, A, "default", ("2",), 0, 9, overdue=ids)
    assert [job.id for job in taken] == [ids[0], ids[4]], "the owner of the job of x is gone"


def test_host_takes_running_jobs_without_an_owner_as_long_as_it_has_room() -> None:
    jobs = started(job_of(1), job_of(2), job_of(3, tier="other"), job_of(4))
    jobs, taken = take_jobs(jobs, A, "default", (), 2, 9)
    assert [(job.id, job.owner, job.run) for job in taken] == [(job_of(1).id, A, 1), (job_of(2).id, A, 1)]
    assert [job.counts.at_least for job in taken] == [False, False]
    same, none = take_jobs(jobs, A, "default", (), 0, 9)
    assert same is jobs
    assert none == []


def test_job_of_a_living_owner_is_left_alone_and_that_of_a_missing_one_is_taken() -> None:
    jobs, _ = take_jobs(one(), A, "default", (), 4, 1)
    same, _ = take_jobs(jobs, B, "default", ("another",), 4, 2)
    assert same is jobs
    taken_over, [job] = take_jobs(jobs, B, "default", (A.nonce,), 4, 2)
    assert (job.owner, job.run, job.counts.at_least) == (B, 2, True)
    assert only(taken_over) == job


def test_missing_owner_of_a_cancelled_job_is_cleared() -> None:
    jobs, _ = take_jobs(one(), A, "default", (), 4, 1)
    jobs, _ = control(jobs, "default", job_of(1).id, BulkJobCommand.CANCEL, 2)
    jobs, taken = take_jobs(jobs, B, "default", (A.nonce,), 4, 3)
    assert taken == []
    assert (only(jobs).owner, only(jobs).state, only(jobs).counts.at_least) == (None, BulkJobState.CANCELLED, True)


def test_report_of_the_present_run_is_written_and_its_repetition_changes_nothing() -> None:
    jobs, _ = take_jobs(one(), A, "default", (), 4, 1)
    progress = BulkJobProgress(1, "c", BulkJobCounts(5, 4, 1), "leased", "waits")
    jobs, job = report(jobs, job_of(1).id, progress, 8)
    assert (job.cursor, job.counts, job.refusal, job.problem, job.owner) == (
        "c",
        progress.counts,
        "leased",
        "waits",
        A,
    )
    again, _ = report(jobs, job.id, progress, 9)
    assert again is jobs


def test_report_of_an_earlier_run_is_refused() -> None:
    jobs, _ = take_jobs(one(), A, "default", (), 4, 1)
    jobs, _ = take_jobs(jobs, B, "default", (A.nonce,), 4, 2)
    with pytest.raises(BulkJobTaken):
        report(jobs, job_of(1).id, BulkJobProgress(1, "c", BulkJobCounts()), 3)
    with pytest.raises(BulkJobTaken):
        report(BulkJobRecords(), job_of(1).id, BulkJobProgress(1, "c", BulkJobCounts()), 3)


def test_report_after_the_job_was_given_up_is_refused() -> None:
    jobs, _ = take_jobs(one(), A, "default", (), 4, 1)
    jobs, job = report(jobs, job_of(1).id, BulkJobProgress(1, "c", BulkJobCounts(9, 9, 0), is_leaving=True), 2)
    assert job.owner is None
    with pytest.raises(BulkJobTaken):
        report(jobs, job.id, BulkJobProgress(1, "b", BulkJobCounts(5, 5, 0)), 3)


@pytest.mark.parametrize("command", [BulkJobCommand.INTERRUPT, BulkJobCommand.CANCEL])
def test_last_page_of_an_interrupted_or_cancelled_job_is_counted(command: BulkJobCommand) -> None:
    jobs, _ = take_jobs(one(), A, "default", (), 4, 1)
    jobs, _ = control(jobs, "default", job_of(1).id, command, 2)
    jobs, job = report(jobs, job_of(1).id, BulkJobProgress(1, "c", BulkJobCounts(5, 5, 0)), 3)
    assert (job.counts.changed, job.owner, job.state.value) == (
        5,
        None,
        "interrupted" if command is BulkJobCommand.INTERRUPT else "cancelled",
    )


def test_job_that_is_resumed_before_its_last_report_keeps_its_owner() -> None:
    jobs, _ = take_jobs(one(), A, "default", (), 4, 1)
    for command in (BulkJobCommand.INTERRUPT, BulkJobCommand.RESUME):
        jobs, _ = control(jobs, "default", job_of(1).id, command, 2)
    _, job = report(jobs, job_of(1).id, BulkJobProgress(1, "c", BulkJobCounts(5, 5, 0)), 3)
    assert (job.owner, job.state) == (A, BulkJobState.RUNNING)


def test_resumed_job_is_taken_again_with_its_cursor_and_exact_counts() -> None:
    jobs, _ = take_jobs(one(), A, "default", (), 4, 1)
    jobs, _ = control(jobs, "default", job_of(1).id, BulkJobCommand.INTERRUPT, 2)
    jobs, _ = report(jobs, job_of(1).id, BulkJobProgress(1, "c", BulkJobCounts(5, 5, 0)), 3)
    jobs, _ = control(jobs, "default", job_of(1).id, BulkJobCommand.RESUME, 4)
    _, [job] = take_jobs(jobs, B, "default", (), 4, 5)
    assert (job.cursor, job.counts, job.run) == ("c", BulkJobCounts(5, 5, 0), 2)


@pytest.mark.parametrize("end", [BulkJobState.DONE, BulkJobState.FAILED])
def test_ended_job_has_no_owner(end: BulkJobState) -> None:
    jobs, _ = take_jobs(one(), A, "default", (), 4, 1)
    _, job = report(jobs, job_of(1).id, BulkJobProgress(1, "c", BulkJobCounts(5, 5, 0), problem="why", end=end), 3)
    assert (job.state, job.owner, job.ended_at_ms) == (end, None, 3)
    assert job.problem == ("why" if end is BulkJobState.FAILED else None)


def test_cancelled_job_stays_cancelled_whatever_its_last_page_says() -> None:
    jobs, _ = take_jobs(one(), A, "default", (), 4, 1)
    jobs, _ = control(jobs, "default", job_of(1).id, BulkJobCommand.CANCEL, 2)
    _, job = report(jobs, job_of(1).id, BulkJobProgress(1, "c", BulkJobCounts(5, 5, 0), end=BulkJobState.DONE), 3)
    assert (job.state, job.ended_at_ms, job.counts.changed) == (BulkJobState.CANCELLED, 2, 5)


def test_stopping_host_loses_what_it_has_not_given_up() -> None:
    jobs = started(job_of(1), job_of(2))
    jobs, _ = take_jobs(jobs, A, "default", (), 1, 1)
    jobs, _ = take_jobs(jobs, B, "default", (), 1, 1)
    jobs = release(jobs, A.nonce, 2)
    assert [job.owner for job in jobs.by_id.values()] == [None, B]
    assert jobs.by_id[job_of(1).id].counts.at_least
    assert release(jobs, A.nonce, 3) is jobs
