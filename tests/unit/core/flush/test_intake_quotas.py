"""The composition of a flush: lanes by shares, namespaces by weights, bytes by a limit."""

from __future__ import annotations

from collections import Counter

from hypothesis import example, given, settings
from hypothesis import strategies as st

from foqs.core.flush.intake import LANE_SHARES
from foqs.core.flush.lane_queue import TURN_COST_MAX
from foqs.core.flush.moves import Moves
from foqs.core.flush.operation import Events, Lane, Operation
from foqs.core.items.life import Event, EventKind
from tests.support.example_counts import examples
from tests.support.plain_intake import (
    Caller,
    intake,
    is_within,
    lanes_of,
    namespaces_of,
    numbers_of,
    operation_of,
    sealed,
)

# ---------------------------------------------------------------- shares and limits


def test_a_flush_holds_lanes_in_order_of_precedence() -> None:
    queue, caller = intake(), Caller()
    operations = {lane: operation_of(caller, lane, lane * 10 + 1, 2) for lane in Lane}
    for lane in reversed(Lane):
        queue.submit(operations[lane])
    batch = queue.seal()
    assert [part.operation.lane for part in batch.parts] == list(Lane)


@given(st.dictionaries(st.sampled_from(Lane), st.integers(1, 60), min_size=1), st.integers(1, 60))
@example(dict(zip(Lane, (2, 1, 1, 1, 1, 1, 2, 2), strict=True)), 10)
def test_every_lane_gets_its_minimum_and_none_more_than_its_maximum(waiting: dict[Lane, int], items_max: int) -> None:
    queue, caller = intake(flush_items_max=items_max), Caller()
    for lane, count in waiting.items():
        queue.submit(operation_of(caller, lane, 1 + lane * 1_000, count))
    total = max(items_max, len(waiting))
    counts = lanes_of(queue.seal())
    assert sum(counts.values()) <= total
    room = total
    for lane in Lane:
        if lane in waiting:
            share = LANE_SHARES[lane]
            assert counts[lane] >= min(waiting[lane], max(1, (total - len(waiting)) * share.percent_min // 100))
            assert counts[lane] <= max(1, total * share.percent_max // 100)
            # A lane may take all but the minimums of the lanes behind it.
            kept_for_later_lanes = sum(
                min(waiting[other], 1 + (total - len(waiting)) * LANE_SHARES[other].percent_min // 100)
                for other in waiting
                if other > lane
            )
            assert counts[lane] == min(
                waiting[lane], max(1, total * share.percent_max // 100), room - kept_for_later_lanes
            )
            room -= counts[lane]
        else:
            assert not counts[lane]


def test_the_minimums_of_all_lanes_sum_to_less_than_a_flush() -> None:
    assert sum(share.percent_min for share in LANE_SHARES.values()) < 100
    assert set(LANE_SHARES) == set(Lane)


def test_inserts_are_left_out_on_request() -> None:
    queue, caller = intake(), Caller()
    queue.submit(caller.inserts(1, 1))
    queue.submit(caller.acks(2))
    assert numbers_of(queue.seal(with_inserts=False)) == [2]
    assert not queue.seal(with_inserts=False)
    assert numbers_of(queue.seal()) == [1]


def test_the_flush_size_that_is_set_stays_within_the_limit() -> None:
    queue, caller = intake(flush_items_max=10), Caller()
    queue.submit(caller.inserts(1, *[1] * 100))
    for pace, count in ((4, 2), (0, 1), (1_000, 5)):
        queue.set_flush_items_max(pace)
        assert len(queue.seal()) == count


@given(
    st.lists(st.lists(st.integers(0, 300), min_size=1, max_size=8), min_size=1, max_size=10),
    st.integers(1, 400),
    st.sampled_from(["insert", "nack", "deliver"]),
)
def test_the_bytes_of_a_lane_stay_within_the_limit_except_for_a_single_larger_entry(
    sizes: list[list[int]], bytes_max: int, kind: str
) -> None:
    queue, caller = intake(flush_bytes_max=bytes_max), Caller()
    for place, work_sizes in enumerate(sizes):
        first, namespace = place * 100 + 1, "nm"[place % 2]
        operation: Operation
        if kind == "insert":
            operation = caller.inserts(first, *work_sizes, namespace=namespace)
        elif kind == "nack":
            events = [Event(EventKind.NACK, first + i, metadata=bytes(size)) for i, size in enumerate(work_sizes)]
            operation = Events(namespace, events, None)
        else:
            numbers = range(first, first + len(work_sizes))
            operation = caller.delivery(*numbers, namespace=namespace, read_bytes=work_sizes[0])
        queue.submit(operation)
    entries = sum(map(len, sizes))
    while len(queue):
        batch = sealed(queue)
        assert batch
        assert is_within(batch.parts, bytes_max)
        entries -= len(batch)
    assert entries == 0


def test_moves_that_may_copy_large_payloads_are_in_a_flush_each() -> None:
    queue = intake(flush_bytes_max=100)
    queue.submit(Moves("n", [Event(EventKind.MOVE, number, topic="u") for number in (1, 2)], 90, None))
    assert [numbers_of(sealed(queue)) for _ in range(2)] == [[1], [2]]


def test_a_lane_with_large_entries_does_not_stop_another() -> None:
    queue, caller = intake(flush_bytes_max=100), Caller()
    queue.submit(caller.delivery(1, 2, read_bytes=90))
    queue.submit(caller.inserts(10, 60, 60))
    assert numbers_of(sealed(queue)) == [1, 10]


def test_an_operation_that_is_whole_exceeds_the_share_of_its_lane_and_no_other_follows_it() -> None:
    queue, caller = intake(flush_items_max=10), Caller()
    for first in (1, 11, 21):
        queue.submit(caller.inserts(first, *[1] * 8, is_whole=True))
    queue.submit(caller.acks(*range(100, 110)))
    assert [numbers_of(sealed(queue)) for _ in range(4)] == [
        [*range(100, 106), *range(1, 9)],
        [*range(106, 110), *range(11, 19)],
        [*range(21, 29)],
        [],
    ]


def test_an_operation_that_is_whole_and_has_too_many_bytes_waits_for_the_next_flush() -> None:
    queue, caller = intake(flush_bytes_max=100), Caller()
    queue.submit(caller.inserts(1, 30))
    queue.submit(caller.inserts(2, 40, 40, is_whole=True))
    assert [numbers_of(sealed(queue)) for _ in range(2)] == [[1], [2, 3]]


# --------------------------------------------------------------------- namespaces


def test_the_works_of_a_namespace_are_sealed_in_order() -> None:
    queue, caller = intake(flush_items_max=20), Caller()
    for first in range(1, 100, 7):
        queue.submit(caller.inserts(first, *[1] * 7, namespace="n"))
        queue.submit(caller.inserts(1_000 + first, *[1] * 7, namespace="m"))
    found: list[int] = []
    while len(queue):
        found += numbers_of(sealed(queue))
    of_n = [number for number in found if number < 1_000]
    assert of_n == sorted(of_n)
    assert len(of_n) * 2 == len(found)


@settings(max_examples=examples(40))
@given(
    st.lists(st.integers(1, 10), min_size=2, max_size=4),
    st.integers(8, 400),
    st.integers(1, 150),
    st.integers(1, 8),
    st.sampled_from([Lane.ACK, Lane.DUE, Lane.INSERT]),
)
def test_namespaces_that_always_wait_are_served_by_their_weights(
    weights: list[int], items_max: int, work_size: int, seals: int, lane: Lane
) -> None:
    names = [f"n{place}" for place in range(len(weights))]
    weight = dict(zip(names, weights, strict=True))
    queue = intake(weight, flush_items_max=items_max, queue_items_max=10_000_000, queue_bytes_max=10_000_000)
    caller = Caller()
    for place, name in enumerate(names):
        for first in range(0, seals * items_max + 1, work_size):
            queue.submit(operation_of(caller, lane, 1 + place * 1_000_000 + first, work_size, name))
    served: Counter[str] = Counter()
    for _ in range(seals):
        served += namespaces_of(sealed(queue))
    for one in names:
        for other in names:
            turns = TURN_COST_MAX / weight[one] + TURN_COST_MAX / weight[other]
            assert abs(served[one] / weight[one] - served[other] / weight[other]) <= turns


def test_bytes_are_charged_to_their_namespace() -> None:
    queue = intake(flush_items_max=1_000, flush_bytes_max=1 << 20, queue_bytes_max=1 << 30)
    caller = Caller()
    for first in range(0, 1_000, 10):
        queue.submit(caller.inserts(first, *[10 * 1024 - 1] * 10, namespace="large"))
    for first in range(1_000, 3_000, 10):
        queue.submit(caller.inserts(first, *[1] * 10, namespace="small"))
    served: Counter[str] = Counter()
    for _ in range(3):
        served += namespaces_of(sealed(queue))
    # An item costs 1, plus 1 for each KiB: 10 and 1.
    assert served["small"] >= 9 * served["large"]


@settings(max_examples=examples(60))
@given(
    st.lists(st.tuples(st.integers(1, 100), st.integers(1, 120)), min_size=1, max_size=5),
    st.integers(12, 300),
    st.integers(0, 4),
    st.sampled_from([Lane.ACK, Lane.LEASE, Lane.INSERT]),
)
def test_the_item_of_an_idle_namespace_is_in_the_next_flush(
    floods: list[tuple[int, int]], items_max: int, flushes: int, lane: Lane
) -> None:
    """This holds for any queues and weights of the others."""
    weight = {f"n{place}": weight for place, (weight, _) in enumerate(floods)}
    queue = intake(weight, flush_items_max=items_max, queue_items_max=10_000_000)
    caller = Caller()
    for place, (_, work_size) in enumerate(floods):
        for first in range(0, (flushes + 2) * items_max, work_size):
            queue.submit(operation_of(caller, lane, 1 + place * 1_000_000 + first, work_size, f"n{place}"))
    for _ in range(flushes):
        sealed(queue)
    queue.submit(operation_of(caller, lane, 100_000_000, 1, "quiet"))
    assert namespaces_of(sealed(queue))["quiet"] == 1


def test_a_namespace_that_uses_less_than_its_part_never_waits_for_a_second_flush() -> None:
    queue, caller = intake({"n": 3}, flush_items_max=20), Caller()
    for first in range(0, 1_000, 10):
        queue.submit(caller.inserts(1 + first, *[1] * 10))
    for flush in range(40):
        queue.submit(caller.inserts(10_000 + flush, 1, namespace="m"))
        assert namespaces_of(sealed(queue)) == {"n": 9, "m": 1}


def test_a_namespace_that_submits_single_items_gets_no_more_than_its_part() -> None:
    queue, caller = intake({"n": 10}, flush_items_max=24), Caller()
    for first in range(0, 1_000, 10):
        queue.submit(caller.inserts(1 + first, *[1] * 10))
    served: Counter[str] = Counter()
    queued = 0
    for _ in range(40):
        # A few items always wait.
        while queued - served["m"] < 12:
            queue.submit(caller.inserts(10_000 + queued, 1, namespace="m"))
            queued += 1
        served += namespaces_of(sealed(queue))
    assert served["m"] <= served["n"] / 10 + 2 * TURN_COST_MAX


# ---------------------------------------------------------------- small flushes


def test_a_small_backlog_beside_a_large_one_is_in_a_small_flush() -> None:
    queue, caller = intake(small_flush_items=20), Caller()
    queue.submit(operation_of(caller, Lane.INSERT, 1, 500, "flood"))
    assert len(sealed(queue)) == 50
    queue.submit(operation_of(caller, Lane.ACK, 1_000, 3, "quiet"))
    queue.submit(operation_of(caller, Lane.INSERT, 2_000, 2, "quiet"))
    batch = sealed(queue)
    assert namespaces_of(batch)["quiet"] == 5
    assert len(batch) <= 20


def test_a_flood_gets_every_other_flush_in_full() -> None:
    queue, caller = intake(small_flush_items=20), Caller()
    queue.submit(operation_of(caller, Lane.INSERT, 1, 500, "flood"))
    sizes = []
    for number in range(6):
        queue.submit(operation_of(caller, Lane.INSERT, 1_000 + number, 1, "quiet"))
        sizes.append(len(sealed(queue)))
    assert sizes == [10, 50, 10, 50, 10, 50]


def test_without_a_small_backlog_there_are_no_small_flushes() -> None:
    queue, caller = intake(small_flush_items=20), Caller()
    for first, namespace in ((1, "flood"), (1_000, "other"), (2_000, "")):
        queue.submit(operation_of(caller, Lane.INSERT, first, 300 if namespace else 3, namespace))
    assert [len(sealed(queue)) for _ in range(4)] == [50, 50, 50, 50]


def test_a_small_flush_is_also_limited_in_bytes() -> None:
    queue, caller = intake(small_flush_items=20, flush_bytes_max=1 << 20, queue_bytes_max=1 << 24), Caller()
    queue.submit(caller.inserts(1, *[10_000] * 60, namespace="flood"))
    queue.submit(caller.inserts(1_000, 10_000, namespace="quiet"))
    batch = sealed(queue)
    assert namespaces_of(batch) == {"flood": 1, "quiet": 1}


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(Lane), st.integers(1, 40)), max_size=30))
def test_the_backlogs_decide_which_flushes_are_small(operations: list[tuple[str, Lane, int]]) -> None:
    queue, caller = intake(small_flush_items=20, queue_items_max=100_000), Caller()
    waiting: Counter[str] = Counter()
    is_small = False
    for place, (namespace, lane, count) in enumerate(operations):
        queue.submit(operation_of(caller, lane, 1 + place * 100, count, namespace), is_internal=True)
        waiting[namespace] += count
        if place % 3 == 2:
            has_small_backlog = any(0 < waiting[name] <= 10 for name in waiting)
            is_small = has_small_backlog and waiting.total() > 40 and not is_small
            batch = sealed(queue)
            lanes = len(lanes_of(batch))
            assert len(batch) <= max(20 if is_small else 100, lanes)
            if not is_small:
                assert len(batch) >= min(waiting.total(), *(share.percent_max for share in LANE_SHARES.values()))
            waiting -= namespaces_of(batch)
