"""Virtual time: the loop never waits, always runs in the same order, and kills as `kill -9` does."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.virtual_time import Deadlock, OutOfTime, Process, SimulatedLoop, run_virtual

YEAR_S = 365 * 24 * 3600.0


def running_loop() -> SimulatedLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)
    return loop


def test_a_year_passes_at_once() -> None:
    async def program() -> float:
        loop = running_loop()
        assert loop.time() == 0
        await asyncio.sleep(YEAR_S)
        await asyncio.sleep(YEAR_S / 1e9)
        return loop.time()

    assert run_virtual(program) == pytest.approx(YEAR_S * (1 + 1e-9))


def test_timers_fire_in_the_order_of_their_time() -> None:
    async def program() -> list[float]:
        seen: list[float] = []

        async def sleeper(delay_s: float) -> None:
            await asyncio.sleep(delay_s)
            seen.append(running_loop().time())

        await asyncio.gather(*(sleeper(delay_s) for delay_s in (3.0, 0.5, 2.0, 0.25)))
        return seen

    assert run_virtual(program) == [0.25, 0.5, 2.0, 3.0]


def test_a_timeout_ends_a_wait_at_its_virtual_time() -> None:
    async def program() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await asyncio.Event().wait()
        return running_loop().time()

    assert run_virtual(program) == 30.0


def test_deadlock_names_the_tasks_that_wait() -> None:
    async def waiter(event: asyncio.Event) -> None:
        await event.wait()

    async def program() -> None:
        await asyncio.create_task(waiter(asyncio.Event()), name="the waiter")

    with pytest.raises(Deadlock) as caught:
        run_virtual(program)
    assert len(caught.value.waiting) == 2
    assert caught.value.waiting[0].startswith("main: ")
    assert "the waiter: " in caught.value.waiting[1]
    assert "test_virtual_time.py:" in caught.value.waiting[1]
    assert "0x" not in str(caught.value)


def test_a_program_is_stopped_at_its_time_limit() -> None:
    async def program() -> None:
        while True:
            ticks.append(running_loop().time())
            await asyncio.sleep(1)

    ticks: list[float] = []
    with pytest.raises(OutOfTime, match="main: "):
        run_virtual(program, until_s=1000)
    assert ticks == [float(n) for n in range(1001)]


def test_remaining_tasks_are_cancelled_oldest_first() -> None:
    ended: list[str] = []

    async def straggler(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(name)

    async def program() -> list[asyncio.Task[None]]:
        tasks = [asyncio.create_task(straggler(f"s{n}")) for n in range(50)]
        await asyncio.sleep(1)
        return tasks

    run_virtual(program)
    assert ended == [f"s{n}" for n in range(50)]


def test_a_callback_that_fails_fails_the_run() -> None:
    async def program() -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 / 0)
        await asyncio.sleep(1)

    with pytest.raises(ExceptionGroup) as caught:
        run_virtual(program)
    assert caught.group_contains(ZeroDivisionError)


def test_threads_are_refused() -> None:
    async def program() -> None:
        await asyncio.to_thread(int)

    with pytest.raises(RuntimeError, match="no threads"):
        run_virtual(program)


def test_an_abandoned_async_generator_is_closed() -> None:
    closed: list[bool] = []

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            closed.append(True)

    async def program() -> None:
        async for _ in numbers():
            break
        await asyncio.sleep(1)

    run_virtual(program)
    assert closed == [True]


def test_on_step_is_called_before_every_callback() -> None:
    steps: list[int] = []
    ran: list[int] = []

    async def program() -> None:
        for _ in range(5):
            ran.append(len(steps))
            await asyncio.sleep(0)

    run_virtual(program, on_step=steps.append)
    assert steps[:5] == [1, 2, 3, 4, 5]
    assert ran == [1, 2, 3, 4, 5]


def worker_program(kill_at: int) -> list[str]:
    """A worker writes down every stage it reaches, and is killed before step `kill_at`."""
    log: list[str] = []
    workers: list[Process] = []

    async def stage(name: str) -> None:
        log.append(name)
        await asyncio.sleep(0.5)

    async def worker() -> None:
        try:
            async with asyncio.timeout(100):
                await asyncio.create_task(stage("child"))
                await stage("second")
                asyncio.get_running_loop().call_later(1, log.append, "timer")
                await stage("third")
                await asyncio.sleep(10)
        except BaseException:
            log.append("except")
            raise
        finally:
            log.append("finally")
            await asyncio.sleep(1)
            log.append("awaited in finally")

    async def program() -> list[str]:
        process = running_loop().process("worker")
        workers.append(process)
        process.spawn(worker())
        await asyncio.sleep(60)
        return list(log)

    def kill(step: int) -> None:
        if step == kill_at:
            workers[0].kill()

    return run_virtual(program, on_step=kill)


def test_a_killed_process_stops_at_any_step_and_runs_no_cleanup() -> None:
    full_log = worker_program(kill_at=0)
    assert full_log == ["child", "second", "third", "timer", "finally", "awaited in finally"]
    seen = set()
    for kill_at in range(2, 40):
        log = worker_program(kill_at)
        assert log == full_log[: len(log)]
        seen.add(len(log))
    assert seen == set(range(len(full_log) + 1))


def test_killing_leaves_other_processes_alone() -> None:
    async def ticker(log: list[float]) -> None:
        while True:
            log.append(running_loop().time())
            await asyncio.sleep(1)

    async def program() -> tuple[int, int]:
        loop = running_loop()
        first, second = loop.process("first"), loop.process("second")
        a: list[float] = []
        b: list[float] = []
        first.spawn(ticker(a))
        second.spawn(ticker(b))
        await asyncio.sleep(2.5)
        first.kill()
        await asyncio.sleep(2)
        with pytest.raises(RuntimeError, match="was killed"):
            first.spawn(ticker(a))
        return len(a), len(b)

    assert run_virtual(program) == (3, 5)


def test_a_process_cannot_kill_itself() -> None:
    async def program() -> None:
        process = running_loop().process("p")

        async def suicide() -> None:
            process.kill()

        await process.spawn(suicide())

    with pytest.raises(RuntimeError, match="cannot kill itself"):
        run_virtual(program)


def test_a_thawed_process_continues_with_everything_that_came_due() -> None:
    log: list[tuple[str, float]] = []

    def note(what: str) -> None:
        log.append((what, asyncio.get_running_loop().time()))

    async def worker() -> None:
        asyncio.get_running_loop().call_later(2, note, "timer")
        for _ in range(3):
            await asyncio.sleep(1)
            note("slept")

    async def program() -> None:
        process = running_loop().process("worker")
        process.spawn(worker())
        await asyncio.sleep(0.5)
        process.freeze()
        process.run(running_loop().call_soon, note, "called")
        await asyncio.sleep(9.5)
        assert log == []
        process.thaw()
        await asyncio.sleep(9)

    run_virtual(program)
    assert log == [("called", 10.0), ("timer", 10.0), ("slept", 10.0), ("slept", 11.0), ("slept", 12.0)]


def test_a_process_killed_while_frozen_stays_dead() -> None:
    async def program() -> None:
        process = running_loop().process("worker")
        process.run(running_loop().call_later, 1, pytest.fail, "it ran")
        process.freeze()
        await asyncio.sleep(2)
        process.kill()
        process.thaw()
        await asyncio.sleep(2)

    run_virtual(program)


def test_a_task_waiting_for_a_thaw_dies_with_its_process() -> None:
    async def program() -> None:
        process = running_loop().process("worker")
        process.spawn(asyncio.sleep(1))
        process.freeze()
        await asyncio.sleep(2)
        process.kill()
        await asyncio.sleep(1)

    run_virtual(program)


def test_timers_of_killed_processes_do_not_hide_a_deadlock() -> None:
    async def program() -> None:
        process = running_loop().process("p")
        process.spawn(asyncio.sleep(YEAR_S))
        await asyncio.sleep(1)
        process.kill()
        await asyncio.Event().wait()

    with pytest.raises(Deadlock):
        run_virtual(program)


def tangled_program() -> str:
    """Many tasks that meet in queues, locks, timers and timeouts; returns what happened, in order."""
    log: list[str] = []

    async def program() -> str:
        queue: asyncio.Queue[int] = asyncio.Queue(3)
        lock = asyncio.Lock()
        loop = running_loop()

        async def producer(n: int) -> None:
            for m in range(20):
                await asyncio.sleep((n * 7 + m * 3) % 5 / 10)
                await queue.put(n * 100 + m)

        async def consumer(n: int) -> None:
            while True:
                got = await queue.get()
                async with lock:
                    log.append(f"{loop.time():.6f} {n} {got} {loop.steps}")
                    await asyncio.sleep(0.01)

        tasks = [asyncio.create_task(consumer(n)) for n in range(4)]
        await asyncio.gather(*(producer(n) for n in range(6)))
        try:
            async with asyncio.timeout(1):
                await asyncio.gather(*tasks)
        except TimeoutError:
            log.append(", ".join(task.get_name() for task in tasks))
        return "\n".join(log)

    return run_virtual(program)


def test_the_same_program_runs_the_same_steps_with_any_hash_seed() -> None:
    here = tangled_program()
    assert here == tangled_program()
    for seed in ("1", "2"):
        there = subprocess.run(
            [sys.executable, "-c", "from tests.support.tests.test_virtual_time import *; print(tangled_program())"],
            env=dict(os.environ, PYTHONHASHSEED=seed),
            cwd=Path(__file__).parents[3],
            capture_output=True,
            text=True,
            check=True,
        )
        assert there.stdout.strip() == here
