"""Tests the queues of settlements: in batches, one queue for each host."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random

from foqs_client.consumer.failure_backoff import BACKOFF_S_MIN
from foqs_client.consumer.settlement_queue import WEIGHT_PER_CALL, SettlementQueue, SettlementQueues
from foqs_client.errors import InvalidArgument
from foqs_client.types import EntryResult, Outcome
from tests.support.virtual_time import run_virtual


def unexpected(error: Exception) -> None:
    raise AssertionError(error)


def test_entries_that_arrive_during_a_call_form_the_next_batch() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        batches: list[list[int]] = []
        finished: list[int] = []

        async def call(entries: Sequence[int]) -> Sequence[Outcome]:
            batches.append(list(entries))
            await asyncio.sleep(1)
            return [Outcome()] * len(entries)

        def settled(entries: Sequence[int], outcomes: Sequence[EntryResult]) -> Sequence[int]:
            finished.extend(entries)
            return ()

        outbox: SettlementQueue[int] = SettlementQueue(call, settled, unexpected, Random(1))
        outbox.put(0)
        outbox.put(1)
        for moment in range(2, 9):
            loop.call_later(moment / 10, outbox.put, moment)
        await asyncio.sleep(0.95)
        await outbox.wait_empty()
        assert batches == [[0, 1], list(range(2, 9))]
        assert finished == list(range(9))
        assert loop.time() == 2.0

    run_virtual(main)


def test_retried_entries_are_sent_first_after_a_pause() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        batches: list[list[int]] = []

        async def call(entries: Sequence[int]) -> Sequence[Outcome]:
            batches.append(list(entries))
            return [Outcome()] * len(entries)

        outbox: SettlementQueue[int] = SettlementQueue(
            call, lambda entries, _: entries[1:] if len(batches) == 1 else (), unexpected, Random(1)
        )
        for entry in (0, 1):
            outbox.put(entry)
        loop.call_later(BACKOFF_S_MIN / 4, outbox.put, 2)
        await outbox.wait_empty()
        assert batches == [[0, 1], [1, 2]]

    run_virtual(main)


def test_internal_error_drops_only_the_entries_of_its_call() -> None:
    async def main() -> None:
        settled: list[int] = []
        errors: list[Exception] = []

        async def call(entries: Sequence[int]) -> Sequence[Outcome]:
            await asyncio.sleep(1)
            if 0 in entries:
                raise ZeroDivisionError
            settled.extend(entries)
            return [Outcome()] * len(entries)

        outbox: SettlementQueue[int] = SettlementQueue(call, lambda entries, _: (), errors.append, Random(1))
        outbox.put(0)
        await asyncio.sleep(0.5)
        outbox.put(1)
        outbox.put(2)
        await outbox.wait_empty()
        assert settled == [1, 2]
        assert [type(error) for error in errors] == [ZeroDivisionError]

    run_virtual(main)


def test_host_that_does_not_reply_delays_no_other_host() -> None:
    async def main() -> None:
        batches: list[list[str]] = []

        async def call(entries: Sequence[str]) -> Sequence[Outcome]:
            batches.append(list(entries))
            if entries[0].startswith("dead"):
                await asyncio.sleep(1_000)
            return [Outcome()] * len(entries)

        outboxes: SettlementQueues[str] = SettlementQueues(
            lambda: SettlementQueue(call, lambda entries, _: (), unexpected, Random(1)),
            lambda entry: entry.partition("-")[0],
        )
        for number in range(3):
            outboxes.put(f"dead-{number}")
            outboxes.put(f"well-{number}")
            await asyncio.sleep(1)
        outboxes.put("other-0")
        await asyncio.sleep(1)
        assert batches == [["dead-0"], ["well-0"], ["well-1"], ["well-2"], ["other-0"]]
        assert list(outboxes._queues) == ["dead", "other"]
        await outboxes.close()

    run_virtual(main)


def test_call_that_is_refused_as_a_whole_is_not_sent_in_halves() -> None:
    async def main() -> None:
        sizes: list[int] = []
        refused: list[int] = []

        async def call(entries: Sequence[int]) -> Sequence[Outcome]:
            sizes.append(len(entries))
            raise InvalidArgument("too long", field="timeout_ms")

        def on_outcomes(entries: Sequence[int], outcomes: Sequence[EntryResult]) -> Sequence[int]:
            refused.extend(entries)
            return ()

        queue = SettlementQueue(call, on_outcomes, unexpected, Random(1))
        for entry in range(500):
            queue.put(entry)
        await queue.wait_empty()
        assert (sizes, refused) == ([500], list(range(500)))

    run_virtual(main)


def test_call_has_as_many_entries_as_its_weight_allows_and_at_least_one() -> None:
    async def main() -> None:
        batches: list[list[int]] = []

        async def call(entries: Sequence[int]) -> Sequence[Outcome]:
            batches.append(list(entries))
            return [Outcome()] * len(entries)

        queue: SettlementQueue[int] = SettlementQueue(
            call, lambda entries, _: (), unexpected, Random(1), lambda entry: entry
        )
        half = WEIGHT_PER_CALL // 2
        for entry in (half, half, 1, 3 * half, half, 1):
            queue.put(entry)
        await queue.wait_empty()
        assert batches == [[half, half], [1], [3 * half], [half, 1]]

    run_virtual(main)


def test_refused_entry_harms_no_other_entry_of_its_batch() -> None:
    async def main() -> None:
        calls = 0
        refused: list[int] = []
        settled: list[int] = []

        async def call(entries: Sequence[int]) -> Sequence[Outcome]:
            nonlocal calls
            calls += 1
            if 137 in entries:
                raise InvalidArgument("this call cannot be sent")
            return [Outcome()] * len(entries)

        def on_outcomes(entries: Sequence[int], outcomes: Sequence[EntryResult]) -> Sequence[int]:
            for entry, outcome in zip(entries, outcomes, strict=True):
                (settled if outcome.error is None else refused).append(entry)
            return ()

        queue: SettlementQueue[int] = SettlementQueue(call, on_outcomes, unexpected, Random(1))
        for entry in range(400):
            queue.put(entry)
        await queue.wait_empty()
        assert refused == [137]
        assert sorted([*settled, 137]) == list(range(400))
        assert calls < 20  # it is found by halves

    run_virtual(main)
