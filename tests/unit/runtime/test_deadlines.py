"""When deadlines expire, and when they do not. The clock is virtual."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.runtime.deadlines import TICK_S, Deadlines, DeadlineSweeper
from tests.support.virtual_time import run_virtual


class Thing:
    """Notes the moment at which it expired."""

    def __init__(self, then: Callable[[], None] | None = None) -> None:
        self.expired_at: list[float] = []
        self._then = then

    def expire(self) -> None:
        self.expired_at.append(asyncio.get_running_loop().time())
        if self._then is not None:
            self._then()


def deadlines() -> tuple[asyncio.AbstractEventLoop, Deadlines]:
    loop = asyncio.get_running_loop()
    return loop, Deadlines(loop)


@given(st.lists(st.floats(0, 5, allow_subnormal=False), min_size=1, max_size=20))
def test_each_expires_once_within_a_tick_after_its_deadline(delays: list[float]) -> None:
    async def main() -> None:
        loop, expiring = deadlines()
        await asyncio.sleep(0.123)
        moments = [loop.time() + delay for delay in delays]
        things = [Thing() for _ in moments]
        for moment, thing in zip(moments, things, strict=True):
            expiring.add(moment, thing)
        await asyncio.sleep(6)
        for moment, thing in zip(moments, things, strict=True):
            [at] = thing.expired_at
            assert moment <= at <= moment + 1.1 * TICK_S

    run_virtual(main)


def test_past_deadline_expires_at_once_but_not_inside_add() -> None:
    async def main() -> None:
        loop, expiring = deadlines()
        await asyncio.sleep(1)
        thing = Thing()
        expiring.add(loop.time() - 0.5, thing)
        assert thing.expired_at == []
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert thing.expired_at == [loop.time()]

    run_virtual(main)


def test_removed_thing_does_not_expire_and_the_others_do() -> None:
    async def main() -> None:
        loop, expiring = deadlines()
        things = [Thing() for _ in range(3)]
        slots = [expiring.add(loop.time() + 1, thing) for thing in things]
        expiring.remove(slots[1], things[1])
        expiring.remove(slots[1], things[1])
        await asyncio.sleep(2)
        assert [len(thing.expired_at) for thing in things] == [1, 0, 1]
        expiring.remove(slots[0], things[0])

    run_virtual(main)


def test_entry_removed_by_the_expiry_of_another_does_not_expire() -> None:
    async def main() -> None:
        loop, expiring = deadlines()
        second = Thing()
        first = Thing(lambda: expiring.remove(slot, second))
        expiring.add(loop.time() + 1, first)
        slot = expiring.add(loop.time() + 1, second)
        await asyncio.sleep(2)
        assert (len(first.expired_at), len(second.expired_at)) == (1, 0)

    run_virtual(main)


def test_entry_added_by_the_expiry_of_another_expires_too() -> None:
    async def main() -> None:
        loop, expiring = deadlines()
        moment = loop.time() + 1
        second = Thing()

        def again() -> None:
            expiring.add(moment, second)

        expiring.add(moment, Thing(again))
        await asyncio.sleep(2)
        assert len(second.expired_at) == 1

    run_virtual(main)


def test_error_in_expire_does_not_stop_the_others() -> None:
    async def main() -> None:
        loop, expiring = deadlines()
        failures: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _, context: failures.append(context))

        def fail() -> None:
            raise RuntimeError("planted")

        second, later = Thing(), Thing()
        expiring.add(loop.time() + 1, Thing(fail))
        expiring.add(loop.time() + 1, second)
        await asyncio.sleep(2)
        expiring.add(loop.time() - 1, later)
        await asyncio.sleep(1)
        assert (len(second.expired_at), len(later.expired_at), len(failures)) == (1, 1, 1)

    run_virtual(main)


def test_things_with_one_deadline_share_a_timer_and_leave_no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        loop, expiring = deadlines()
        timers: list[float] = []
        call_at = loop.call_at

        def counted(when: float, *arguments: Any, **more: Any) -> asyncio.TimerHandle:
            timers.append(when)
            return call_at(when, *arguments, **more)

        monkeypatch.setattr(loop, "call_at", counted)
        moment = loop.time() + 1
        things = [Thing() for _ in range(1_000)]
        slots = {expiring.add(moment, thing) for thing in things}
        assert (len(slots), len(timers)) == (1, 1)
        monkeypatch.undo()
        await asyncio.sleep(2)
        assert all(thing.expired_at for thing in things)
        assert expiring._buckets == {}

    run_virtual(main)


class _Doomed:
    def __init__(self, things: dict[_Doomed, None], expires_at: float, ended: list[float]) -> None:
        self.expires_at = expires_at
        self._things = things
        self._ended = ended

    def expire(self) -> None:
        del self._things[self]
        self._ended.append(self.expires_at)


def test_sweeper_expires_each_remaining_thing_at_its_deadline() -> None:
    async def main() -> None:
        ended: list[float] = []
        things: dict[_Doomed, None] = {}
        backstop = DeadlineSweeper(asyncio.get_running_loop(), things)
        begun = asyncio.get_running_loop().time()
        for after_s in (3, 1, 2, 1.5):
            thing = _Doomed(things, begun + after_s, ended)
            things[thing] = None
            if thing.expires_at < backstop.next_sweep_at:
                backstop.sweep_by(thing.expires_at)
        del things[thing]
        await asyncio.sleep(0.99)
        assert ended == []
        await asyncio.sleep(0.04)
        assert ended == [begun + 1]
        await asyncio.sleep(5)
        assert ended == [begun + 1, begun + 2, begun + 3]
        assert backstop.next_sweep_at > begun + 100

    run_virtual(main)
