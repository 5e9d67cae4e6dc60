"""Tests handlers in tasks and threads: each is reported once and affects no other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any

import pytest

from foqs_client import Delivery
from foqs_client.consumer import Job
from foqs_client.consumer.handler_runners import HandlerRunner, TaskRunner, ThreadRunner
from tests.support.aio import run

COUNT = 300


def jobs(count: int = COUNT) -> list[Job]:
    return [Job(Delivery(id=str(n)), lambda job, lease_ms: None) for n in range(count)]


class Ends:
    """The reported ends of jobs: an error or None, by job."""

    def __init__(self, count: int) -> None:
        self.errors: dict[str, BaseException | None] = {}
        self._count = count
        self._all = asyncio.Event()

    def __call__(self, job: Job, error: BaseException | None) -> None:
        assert job.id not in self.errors
        self.errors[job.id] = error
        if len(self.errors) == self._count:
            self._all.set()

    async def all(self) -> dict[str, BaseException | None]:
        async with asyncio.timeout(60):
            await self._all.wait()
        return self.errors


async def ended(runner: HandlerRunner, works: list[Job]) -> dict[str, BaseException | None]:
    """Run all jobs and return their ends."""
    ends = Ends(len(works))
    await runner.start()
    for job in works:
        runner.submit(job, ends)
    return await ends.all()


def test_handlers_that_never_wait_share_a_task() -> None:
    async def main() -> None:
        tasks: set[asyncio.Task[Any] | None] = set()

        async def handle(job: Job) -> None:
            tasks.add(asyncio.current_task())

        assert list((await ended(TaskRunner(handle), jobs())).values()) == [None] * COUNT
        assert len(tasks) < COUNT / 4  # more than one only where it took them long

    run(main())


def test_handlers_that_wait_run_concurrently() -> None:
    async def main() -> None:
        begun: list[Job] = []
        all_begun = asyncio.Event()

        async def handle(job: Job) -> None:
            begun.append(job)
            if len(begun) == COUNT:
                all_begun.set()
            async with asyncio.timeout(60):
                await all_begun.wait()

        assert list((await ended(TaskRunner(handle), jobs())).values()) == [None] * COUNT

    run(main())


def test_handler_sees_no_context_variable_of_another() -> None:
    async def main() -> None:
        variable = ContextVar("variable", default="none")
        seen: list[str] = []

        async def handle(job: Job) -> None:
            seen.append(variable.get())
            variable.set(job.id)

        variable.set("given")
        runner = TaskRunner(handle)
        await runner.start()
        ends = Ends(COUNT)
        left = jobs()

        def next_one(job: Job, error: BaseException | None) -> None:
            ends(job, error)
            if left:
                runner.submit(left.pop(), next_one)

        for _ in range(10):
            runner.submit(left.pop(), next_one)
        await ends.all()
        assert seen == ["given"] * COUNT

    run(main())


def test_exception_of_a_handler_ends_only_its_own_job() -> None:
    async def main() -> None:
        async def handle(job: Job) -> None:
            if job.id == "1":
                raise ValueError("no")
            if job.id == "2":
                raise asyncio.CancelledError

        errors = await ended(TaskRunner(handle), jobs(4))
        assert [type(errors[str(n)]) for n in range(4)] == [type(None), ValueError, asyncio.CancelledError, type(None)]

    run(main())


def interrupted(handle: Callable[[Job], Coroutine[Any, Any, None]]) -> dict[str, BaseException | None]:
    """Run three jobs; interrupt the first while it waits and the second before it starts."""

    async def main() -> dict[str, BaseException | None]:
        runner = TaskRunner(handle)
        ends = Ends(3)
        await runner.start()
        first, second, third = jobs(3)
        runner.submit(first, ends)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        runner.submit(second, ends)
        runner.submit(third, ends)
        runner.interrupt(first)
        runner.interrupt(second)
        return await ends.all()

    return run(main())


def test_interrupt_cancels_only_its_own_handler() -> None:
    begun: list[str] = []

    async def handle(job: Job) -> None:
        begun.append(job.id)
        if job.id == "0":
            await asyncio.Event().wait()

    errors = interrupted(handle)
    assert begun == ["0", "2"]
    assert [type(errors[name]) for name in "012"] == [asyncio.CancelledError, asyncio.CancelledError, type(None)]


def test_handler_that_ignores_its_cancellation_does_not_pass_it_to_another() -> None:
    cancellations: list[int] = []

    async def handle(job: Job) -> None:
        task = asyncio.current_task()
        assert task is not None
        cancellations.append(task.cancelling())
        if job.id == "0":
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return

    errors = interrupted(handle)
    assert (errors["0"], errors["2"]) == (None, None)
    assert cancellations == [0, 0]


@pytest.mark.parametrize("raised", [SystemExit(1), BaseException("of a library")])
def test_exception_that_ends_programs_ends_only_its_own_job(raised: BaseException) -> None:
    async def main() -> None:
        async def handle(job: Job) -> None:
            if job.id == "1":
                raise raised

        errors = await ended(TaskRunner(handle), jobs(4))
        assert [errors[str(n)] for n in range(4)] == [None, raised, None, None]

    run(main())


def test_error_of_a_report_harms_no_other_job(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async def handle(job: Job) -> None: ...

        for runner in (TaskRunner(handle), ThreadRunner(lambda job: None, 1)):
            await runner.start()
            ends = Ends(3)

            def report(job: Job, error: BaseException | None, ends: Ends = ends) -> None:
                ends(job, error)
                if job.id == "0":
                    raise ValueError("planted")

            for job in jobs(3):
                runner.submit(job, report)
            await ends.all()
            await runner.close()

    run(main())
    messages = [record.getMessage() for record in caplog.records if record.name == "foqs.consumer"]
    assert [text for text in messages if not text.startswith("the event loop has run nothing else")] == [
        "the outcome of the handler of item 0 could not be recorded, for an unexpected error"
    ] * 2


def test_threads_that_cannot_start_leave_their_jobs_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[threading.Thread] = []
    start = threading.Thread.start

    def scarce(thread: threading.Thread) -> None:
        if len(started) == 1:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    async def main() -> None:
        monkeypatch.setattr(threading.Thread, "start", scarce)
        runner = ThreadRunner(lambda job: None, 8)
        assert list((await ended(runner, jobs())).values()) == [None] * COUNT
        assert len(started) == 1
        await runner.close()
        none_left = ThreadRunner(lambda job: None, 8)
        errors = await ended(none_left, jobs(2))
        assert [type(error) for error in errors.values()] == [RuntimeError] * 2

    run(main())


def test_job_that_is_lost_while_it_waits_for_a_thread_is_not_started() -> None:
    async def main() -> None:
        started: list[str] = []
        runner = ThreadRunner(lambda job: started.append(job.id), 1)
        lost, kept = jobs(2)
        lost.lost = True
        errors = await ended(runner, [lost, kept])
        await runner.close()
        assert started == [kept.id]
        assert [type(error) for error in errors.values()] == [asyncio.CancelledError, type(None)]

    run(main())


def test_threads_report_every_job_once() -> None:
    async def main() -> None:
        def handle(job: Job) -> None:
            if int(job.id) % 7 == 0:
                raise ValueError(job.id)

        runner = ThreadRunner(handle, 8)
        errors = await ended(runner, jobs())
        assert {name for name, error in errors.items() if error is not None} == {str(n) for n in range(0, COUNT, 7)}
        await runner.close()

    run(main())
