"""Worker processes freeze, die, start others or send unreadable results: the event loop continues, and every item ends."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.context import SpawnProcess
from pathlib import Path
from random import Random

import pytest

from foqs.testing import FakeHost
from foqs_client import Delivery, Item
from foqs_client.consumer import Consumer, Dead, Job, NotBegun
from foqs_client.consumer.handler_outcome import RELEASED, HandlerOutcome, outcome_of
from foqs_client.consumer.process_runner import ProcessDied, ProcessRunner
from tests.support.aio import run
from tests.support.child_handlers import (
    die_and_leave_a_holder,
    die_of_poison,
    follow_up,
    leave_a_program,
    start_processes,
    wait_for_a_program,
    work,
    wrong_end,
)
from tests.support.freezing import freeze, thaw
from tests.support.poison import ATTEMPTS_MAX, DEATHS_MAX, POISON, Begun, poisoned_items, problems_of
from tests.support.processes import is_gone
from tests.support.wrong_ends import survive_wrong_ends

pytestmark = pytest.mark.process

LARGE: int = 1 << 20
"""The bytes of a payload that is too large for a pipe's buffer."""
STUCK_S = 60.0
"""A frozen process is thawed after this time, so that the test fails and does not hang."""
PATIENCE_S = 200.0
"""A guard against hanging: on a busy machine it may take ten seconds to start one of several processes."""


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Freeze a process. What the block does must end before the process is thawed."""
    freeze(pid)
    was_thawed = threading.Event()

    def end_wait() -> None:
        was_thawed.set()
        with suppress(ProcessLookupError):
            thaw(pid)

    timer = threading.Timer(STUCK_S, end_wait)
    timer.start()
    try:
        yield
        assert not was_thawed.is_set(), "this waited for the frozen process"
    finally:
        timer.cancel()
        end_wait()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - another process's doing
            await asyncio.sleep(0.01)


def job(payload: bytes = b"", metadata: bytes = b"") -> Job:
    return Job(Delivery(id="0-1", token=1, payload=payload, metadata=metadata), lambda job, lease_ms: None)


async def ended(runner: ProcessRunner, one: Job) -> BaseException | None:
    """Return the outcome of a job."""
    future: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
    runner.submit(one, lambda _, error: future.set_result(error))
    async with asyncio.timeout(PATIENCE_S):
        return await future


def test_a_frozen_process_does_not_block_the_loop_and_is_killed_in_time() -> None:
    async def story() -> None:
        runner = ProcessRunner(work, 1, lambda text: None)
        await runner.start()
        assert await ended(runner, job()) is None
        [pid] = runner.pids
        with frozen(pid):
            one = job(bytes(8 * LARGE))
            ending = asyncio.ensure_future(ended(runner, one))
            await until(lambda: runner._workers[0].job is one)

            def call() -> None:
                one.lost = True
                runner.on_lost(one, interrupt=False)
                runner.interrupt(one)

            calls = threading.Thread(target=call, daemon=True)
            calls.start()
            await asyncio.to_thread(calls.join)
            error = await ending
            assert isinstance(error, ProcessDied)
            assert str(error) == "the lease ended before the item was started"
        assert await ended(runner, job()) is None  # another process has replaced it
        await runner.close()
        assert runner.pids == []

    run(story(), 240)


def test_a_stop_waits_for_a_frozen_process_no_longer_than_its_timeout() -> None:
    async def story() -> None:
        async with FakeHost({"namespace.payload_bytes_max": LARGE}) as fake:
            client = fake.client()
            consumer = Consumer(client, work, ["t"], processes=1, stop_timeout_s=1.0, rng=Random(1))
            running = asyncio.ensure_future(consumer.run())
            await client.enqueue([Item("t")])
            await until(lambda: consumer.counts.done == 1)
            with frozen(consumer.process_ids[0]):
                await client.enqueue([Item("t", bytes(LARGE))])
                await until(lambda: consumer.counts.running == 1)
                consumer.stop()
                counts = await running
            assert (counts.done, counts.released) == (1, 1)

    run(story(), 240)


def test_a_stop_does_not_wait_for_a_process_that_never_becomes_ready() -> None:
    async def story() -> None:
        async with FakeHost() as fake:
            consumer = Consumer(fake.client(), work, ["t"], processes=1, rng=Random(1))
            running = asyncio.ensure_future(consumer.run())
            await until(lambda: bool(consumer.process_ids))
            with frozen(consumer.process_ids[0]):
                consumer.stop()
                await running

    run(story(), 240)


def test_a_process_says_that_its_handler_has_not_begun() -> None:
    async def story() -> None:
        runner = ProcessRunner(work, 1, lambda text: None)
        await runner.start()
        error = await ended(runner, job(metadata=b"not begun"))
        await runner.close()
        assert outcome_of(error, b"") == RELEASED
        assert isinstance(error, NotBegun) and str(error) == "no database"

    run(story(), 240)


@pytest.mark.parametrize("what", [b"unreadable exception", b"unreadable extension"])
def test_an_unreadable_result_fails_only_its_item(what: bytes) -> None:
    async def story() -> None:
        runner = ProcessRunner(work, 1, lambda text: None)
        await runner.start()
        error = await ended(runner, job(metadata=what))
        assert error is not None
        assert await ended(runner, job()) is None
        await runner.close()

    run(story(), 240)


def test_a_job_lost_on_its_way_to_a_process_was_not_started() -> None:
    async def story() -> None:
        runner = ProcessRunner(work, 1, lambda text: None)
        await runner.start()
        one = job()
        one.lost = True
        assert isinstance(await ended(runner, one), ProcessDied)
        await runner.close()

    run(story(), 240)


def test_wrong_end_of_a_handler_in_a_process_harms_no_other_item() -> None:
    run(survive_wrong_ends(wrong_end, processes=1), 240)


def test_death_is_seen_while_another_process_holds_the_pipe(tmp_path: Path) -> None:
    holder = tmp_path / "holder"

    async def story() -> None:
        async with FakeHost({"namespace.backoff_ms_min": 1, "namespace.backoff_ms_max": 2}) as fake:
            client = fake.client()
            await client.enqueue([Item("t", bytes(holder))])
            consumer = Consumer(client, die_and_leave_a_holder, ["t"], processes=1, rng=Random(1))
            running = asyncio.ensure_future(consumer.run())
            await until(lambda: consumer.counts.done == 1 or running.done())
            assert not is_gone(int(holder.read_text()))
            consumer.stop()
            counts = await running
            assert (counts.done, counts.retried) == (1, 1)

    try:
        run(story(), 240)
    finally:
        os.kill(int(holder.read_text()), signal.SIGKILL)


def test_handler_in_a_process_may_start_processes_which_end_by_signals() -> None:
    async def story() -> None:
        runner = ProcessRunner(start_processes, 1, lambda text: None)
        await runner.start()
        assert await ended(runner, job()) is None
        await runner.close()

    run(story(), 240)


def test_what_a_handler_has_started_ends_with_its_process(tmp_path: Path) -> None:
    note = tmp_path / "program"

    async def story() -> None:
        runner = ProcessRunner(wait_for_a_program, 1, lambda text: None)
        await runner.start()
        one = job(bytes(note))
        ending = asyncio.ensure_future(ended(runner, one))
        await until(note.exists)
        runner.interrupt(one)
        assert isinstance(await ending, ProcessDied)
        await until(lambda: is_gone(int(note.read_text())))
        await runner.close()

    run(story(), 240)


def test_what_handlers_have_started_ends_with_their_processes_if_several_die_together(tmp_path: Path) -> None:
    async def story() -> None:
        runner = ProcessRunner(leave_a_program, 2, lambda text: None)
        await runner.start()
        notes = [tmp_path / name for name in ("one", "two", "three")]
        endings = [asyncio.ensure_future(ended(runner, job(bytes(note)))) for note in notes[:2]]
        await until(lambda: all(note.exists() for note in notes[:2]))
        for note in notes:
            note.with_suffix(".go").touch()
        assert await asyncio.gather(*endings) == [None, None]
        pids = runner.pids
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        await until(lambda: all(map(is_gone, pids)))
        assert (
            await ended(runner, job(bytes(notes[2]))) is None
        )  # by a new process, whose start may not reap the other one
        await runner.close()
        await until(lambda: all(is_gone(int(note.read_text())) for note in notes))

    run(story(), 240)


def test_items_are_given_back_while_no_process_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        lines: list[str] = []
        runner = ProcessRunner(work, 1, lines.append)
        await runner.start()
        [pid] = runner.pids
        monkeypatch.setattr(SpawnProcess, "start", refuse)
        os.kill(pid, signal.SIGKILL)
        await until(lambda: is_gone(pid))
        errors = await asyncio.gather(ended(runner, job()), ended(runner, job()))
        assert [outcome_of(error, b"") for error in errors] == [RELEASED, RELEASED]
        assert "a worker process cannot be started: the system refuses a process (Cannot allocate memory)" in lines
        await runner.close()

    def refuse(_: object) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    run(story(), 240)


def test_process_that_dies_without_an_item_costs_no_attempt() -> None:
    async def story() -> None:
        lines: list[str] = []
        runner = ProcessRunner(work, 1, lines.append)
        await runner.start()
        [pid] = runner.pids
        os.kill(pid, signal.SIGKILL)
        await until(lambda: is_gone(pid))
        assert await ended(runner, job()) is None
        assert lines == ["a worker process was killed by SIGKILL while it had no item"]
        await runner.close()

    run(story(), 240)


def test_item_that_its_process_had_not_read_costs_no_attempt() -> None:
    async def story() -> None:
        lines: list[str] = []
        runner = ProcessRunner(work, 1, lines.append)
        await runner.start()
        [pid] = runner.pids
        freeze(pid)
        ending = asyncio.ensure_future(ended(runner, job()))
        await until(lambda: runner._workers[0].job is not None)
        os.kill(pid, signal.SIGKILL)
        assert await ending is None
        assert lines == ["a worker process was killed by SIGKILL while it had no item"]
        await runner.close()

    run(story(), 240)


def test_item_is_given_back_if_each_process_ends_before_it_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        lines: list[str] = []
        runner = ProcessRunner(work, 1, lines.append)
        await runner.start()
        monkeypatch.setattr("foqs_client.consumer.process_runner._has_ended", lambda process: True)
        assert outcome_of(await ended(runner, job()), b"") == RELEASED
        assert len(lines) == 2
        await runner.close()

    run(story(), 240)


def test_process_that_another_part_of_the_program_has_joined_is_replaced() -> None:
    async def story() -> None:
        lines: list[str] = []
        runner = ProcessRunner(work, 1, lines.append)
        await runner.start()
        [pid] = runner.pids
        os.kill(pid, signal.SIGKILL)
        await asyncio.to_thread(os.waitpid, pid, 0)
        assert await ended(runner, job()) is None
        assert lines == ["a worker process ended while it had no item"]
        await runner.close()

    run(story(), 240)


def problems_of_processes() -> list[str]:
    """Let the poison kill worker processes, while the others wait, until nothing is left. Return what is wrong."""
    found: list[str] = []

    class Noting(Consumer):
        """Notes what its processes were given."""

        def _on_handler_ended(self, job: Job, error: BaseException | None) -> None:
            begun.append((job.payload, job.attempt))
            super()._on_handler_ended(job, error)

    begun: list[Begun] = []

    async def story() -> None:
        async with FakeHost({"namespace.backoff_ms_min": 1, "namespace.backoff_ms_max": 2}) as fake:
            client = fake.client()
            await client.enqueue(poisoned_items(lease_ms=60_000))  # no lease ends while the machine stands still
            consumer = Noting(client, die_of_poison, ["t"], processes=1, in_flight=5, rng=Random(1))
            running = asyncio.ensure_future(consumer.run())
            others = len(poisoned_items()) - 1

            def is_over() -> bool:
                counts = consumer.counts
                is_dead = counts.done == others and counts.dead == 1 and not counts.running
                return is_dead or sum(payload == POISON for payload, _ in begun) >= DEATHS_MAX

            await until(is_over)
            consumer.stop()
            await running
            found.extend(await problems_of(fake, begun))

    run(story(), 240)
    return found


def test_item_that_kills_its_process_is_charged_and_no_other_one(caplog: pytest.LogCaptureFixture) -> None:
    assert problems_of_processes() == []
    deaths = [record.getMessage() for record in caplog.records if "SIGKILL" in record.getMessage()]
    assert len(deaths) == ATTEMPTS_MAX
    assert all(text.startswith("attempt ") and " of item " in text for text in deaths)


def test_planted_poison_that_is_never_charged_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def uncharged(error: BaseException | None, metadata: bytes) -> HandlerOutcome:
        return RELEASED if isinstance(error, ProcessDied) else outcome_of(error, metadata)

    monkeypatch.setattr("foqs_client.consumer.consumer.outcome_of", uncharged)
    assert any(problem.startswith("the poison was begun") for problem in problems_of_processes())


def test_items_that_follow_come_with_the_end_of_a_handler() -> None:
    async def story() -> None:
        runner = ProcessRunner(follow_up, 1, print)
        await runner.start()
        try:
            done, failed = job(b"one"), job(b"two", b"fails")
            assert await ended(runner, done) is None
            assert list(done.then) == [Item("next", b"one-next")]
            assert isinstance(await ended(runner, failed), Dead)
        finally:
            await runner.close()

    run(story(), 240)
