"""Tests coalesced calls with any order of callers, failures and cancellations."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from foqs_client import Deliveries, Delivery, FoqsError, InvalidArgument, Overloaded, UnknownOutcome
from foqs_client.coalescing import Coalescer, SendResult
from foqs_client.shared_dequeues import SharedDequeues
from foqs_client.types import Outcome
from tests.support.example_counts import examples
from tests.support.virtual_time import run_virtual


class FlakyHost:
    """A host with items. It delivers each to one caller at a time, and sometimes fails.

    Attributes:
        lost: items that were delivered in a dropped reply.
    """

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.items: dict[str, list[str]] = {"t": [], "u": []}
        self.lost: list[str] = []
        self.released: list[str] = []
        self.largest = 0
        self.all: list[str] = []

    def stock_up(self) -> None:
        for _ in range(self.rng.randint(1, 4)):
            topic = self.rng.choice("tu")
            self.all.append(f"{topic}{len(self.all)}")
            self.items[topic].append(self.all[-1])

    async def ask(self, wants: Mapping[str, int], wait_ms: int, timeout_ms: int) -> Deliveries:
        rng = self.rng
        assert timeout_ms > 0
        self.largest = max(self.largest, sum(wants.values()))
        until = asyncio.get_running_loop().time() + wait_ms / 1_000
        await asyncio.sleep(rng.choice((0, 0, 0.001, 0.02)))
        while asyncio.get_running_loop().time() < until and not any(  # noqa: ASYNC110 - in virtual time
            self.items[topic] for topic in wants
        ):
            await asyncio.sleep(0.003)
        found = []
        for topic, count in wants.items():
            part = self.items[topic][: rng.randint(0, count) if rng.random() < 0.3 else count]
            del self.items[topic][: len(part)]
            found += part
        chance = rng.random()
        if chance < 0.05:
            self.lost += found
            raise UnknownOutcome("perhaps")
        if chance < 0.1:
            for id_ in found:
                self.items[id_[0]].append(id_)
            raise Overloaded("full")
        try:
            await asyncio.sleep(rng.choice((0, 0.001, 0.01)))
        except asyncio.CancelledError:
            self.lost += found  # a single caller was cancelled: the reply is dropped
            raise
        return Deliveries(Delivery(id_, topic=id_[0]) for id_ in found)


@settings(max_examples=examples(150), deadline=None)
@given(st.integers(0, 1 << 32))
def test_every_item_is_given_to_one_caller_or_released(seed: int) -> None:
    async def story() -> None:
        rng = Random(seed)
        host = FlakyHost(rng)
        coalescer = Coalescer()
        dequeues = SharedDequeues(coalescer, lambda found: host.released.extend(each.id for each in found))
        got: list[str] = []

        async def call(wants: dict[str, int], wait_ms: int, repeats: int) -> None:
            loop = asyncio.get_running_loop()
            for _ in range(repeats):
                begun = loop.time()
                try:
                    found = await dequeues.dequeue(wants, wait_ms, None, 300, host.ask)
                except FoqsError:
                    continue
                got.extend(each.id for each in found)
                for topic in "tu":
                    assert sum(each.topic == topic for each in found) <= wants.get(topic, 0)
                assert loop.time() - begun <= 0.3 + 0.06

        kinds = [({"t": 1}, 0), ({"t": 1}, 50), ({"t": 2, "u": 1}, 50), ({"t": 3}, 50), ({"u": 1}, 50)]
        calls = []
        for _ in range(rng.randint(2, 60)):
            wants, wait_ms = rng.choice(kinds)
            calls.append(asyncio.ensure_future(call(wants, wait_ms, rng.randint(1, 4))))
            if rng.random() < 0.3:
                await asyncio.sleep(rng.choice((0, 0.001, 0.01)))
            if rng.random() < 0.5:
                host.stock_up()
            if rng.random() < 0.3:
                rng.choice(calls).cancel()
        for _ in range(rng.randint(0, 20)):
            await asyncio.sleep(rng.choice((0, 0, 0.001, 0.005)))
            rng.choice(calls).cancel()
            host.stock_up()
        for error in await asyncio.gather(*calls, return_exceptions=True):
            assert error is None or isinstance(error, asyncio.CancelledError)
        await coalescer.close()
        assert coalescer.in_flight_count == 0
        there = host.items["t"] + host.items["u"]
        assert sorted(got + host.released + there + host.lost) == sorted(host.all)
        assert host.largest <= 100

    run_virtual(story)


@settings(max_examples=examples(150), deadline=None)
@given(st.integers(0, 1 << 32))
def test_every_caller_gets_the_results_of_its_own_entries(seed: int) -> None:
    async def story() -> None:
        rng = Random(seed)
        coalescer = Coalescer()
        calls_made = 0

        async def ask(entries: Sequence[int]) -> SendResult[int, Outcome]:
            nonlocal calls_made
            calls_made += 1
            assert 0 < len(entries) <= 100
            await asyncio.sleep(rng.choice((0, 0, 0.001, 0.01)))
            if any(entry < 0 for entry in entries):
                return entries, InvalidArgument("one of them is bad")
            return entries, [Outcome(InvalidArgument(str(entry), field=f"x[{n}].y")) for n, entry in enumerate(entries)]

        async def call(entries: list[int]) -> None:
            for _ in range(rng.randint(1, 3)):
                names = [str(entry) for entry in entries]
                sent, outcomes = await coalescer.call("kind", entries, (len(entries), 0, names), ask)
                if min(entries) < 0:
                    assert isinstance(outcomes, InvalidArgument)
                    continue
                assert not isinstance(outcomes, FoqsError)
                assert list(sent) == entries
                for place, (entry, outcome) in enumerate(zip(entries, outcomes, strict=True)):
                    assert isinstance(outcome.error, InvalidArgument)
                    assert outcome.error.message == str(entry)
                    assert outcome.error.field == f"x[{place}].y"

        calls = []
        for _ in range(rng.randint(2, 60)):
            entries = rng.sample(range(1_000), rng.randint(1, 9))
            if rng.random() < 0.03:
                entries[0] = -1
            calls.append(asyncio.ensure_future(call(entries)))
            if rng.random() < 0.3:
                await asyncio.sleep(rng.choice((0, 0.001)))
            if rng.random() < 0.3:
                rng.choice(calls).cancel()
        for error in await asyncio.gather(*calls, return_exceptions=True):
            if error is not None and not isinstance(error, asyncio.CancelledError):
                raise error
        await coalescer.close()
        assert coalescer.in_flight_count == 0

    run_virtual(story)
