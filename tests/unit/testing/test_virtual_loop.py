"""The virtual loop: turns, timers and clocks. Its runs are tested in tests/support/tests/test_virtual_time.py."""

from __future__ import annotations

import asyncio

from foqs.testing.virtual_loop import WALL_ORIGIN_MS, VirtualClock, VirtualHandle, VirtualLoop
from tests.support.virtual_time import run_virtual


def test_turn_runs_what_is_due_and_not_what_that_adds() -> None:
    loop, seen = VirtualLoop(), list[object]()

    def first() -> None:
        seen.append("first")
        loop.call_soon(seen.append, "added")

    loop.call_soon(first)
    loop.call_soon(seen.append, "cancelled").cancel()
    loop.call_soon(seen.append, "second")
    loop.run_turn()
    assert seen == ["first", "second"]
    loop.run_turn()
    assert seen == ["first", "second", "added"]
    loop.close()


def test_timers_of_one_moment_fire_in_the_order_in_which_they_were_set() -> None:
    loop, seen = VirtualLoop(), list[object]()
    loop.call_at(2, seen.append, "late")
    for n in range(5):
        loop.call_later(1, seen.append, n)
    cancelled = loop.call_at(0.5, seen.append, "cancelled")
    assert loop.next_timer_s() == 0.5
    cancelled.cancel()
    assert loop.next_timer_s() == 1
    loop.move_time(1)
    loop.move_time(0.5)
    assert loop.time() == 1
    loop.run_turn()
    assert seen == [0, 1, 2, 3, 4]
    assert loop.next_timer_s() == 2
    loop.move_time(2)
    loop.run_turn()
    assert loop.next_timer_s() is None
    loop.close()


def test_callback_that_fails_goes_to_the_exception_handler() -> None:
    loop, failures, seen = VirtualLoop(), list[object](), list[object]()
    loop.set_exception_handler(lambda loop, context: failures.append(context["exception"]))
    loop.call_soon(lambda: 1 / 0)
    loop.call_soon(seen.append, "next")
    loop.run_turn()
    assert [type(failure) for failure in failures] == [ZeroDivisionError]
    assert seen == ["next"]
    loop.close()


def test_subclass_can_postpone_a_callback() -> None:
    class Postponing(VirtualLoop):
        def admit(self, step: VirtualHandle) -> bool:
            postponed.append(step)
            return len(postponed) > 1

    postponed: list[VirtualHandle] = []
    loop, seen = Postponing(), list[object]()
    loop.call_soon(seen.append, "postponed")
    loop.run_turn()
    assert seen == []
    loop.due.extend(postponed)
    loop.run_turn()
    assert seen == ["postponed"]
    loop.close()


def test_clock_counts_whole_milliseconds_from_its_origin() -> None:
    async def program() -> None:
        loop = asyncio.get_running_loop()
        clock = VirtualClock(loop, boot_ms=5_000)
        fast = VirtualClock(loop, rate=1.001)
        assert (clock.monotonic_ms(), clock.wall_ms()) == (5_000, WALL_ORIGIN_MS)
        for n in range(1, 2_000):
            await asyncio.sleep(n / 1000 - loop.time())
            assert clock.monotonic_ms() == 5_000 + n
        await asyncio.sleep(1000 - loop.time())
        assert fast.monotonic_ms() == 1_001_000

    run_virtual(program)
