"""What a flush takes of what waits: lanes by shares, namespaces by weights, bytes by a cap."""

from __future__ import annotations

from collections import Counter

from hypothesis import example, given, settings
from hypothesis import strategies as st

from foqs.core.flush.intake import LANE_SHARES, TURN_COST_MAX
from foqs.core.flush.work import Events, Lane, Work
from foqs.core.items.life import Event, EventKind
from tests.support.plain_intake import (
    Caller,
    intake,
    is_within,
    lanes_of,
    namespaces_of,
    numbers_of,
    sealed,
    work_of,
)

# ---------------------------------------------------------------- shares and caps


def test_a_flush_carries_kinds_in_order_of_precedence() -> None:
    queue, caller = intake(), Caller()
    works = {lane: work_of(caller, lane, lane * 10 + 1, 2) for lane in Lane}
    for lane in reversed(Lane):
        queue.submit(works[lane])
    batch = queue.seal()
    assert [part.work.lane for part in batch.parts] == list(Lane)


@given(st.dictionaries(st.sampled_from(Lane), st.integers(1, 60), min_size=1), st.integers(1, 60))
@example(dict(zip(Lane, (2, 1, 1, 1, 1, 1, 2, 2), strict=True)), 10)
def test_every_lane_gets_its_least_and_none_more_than_its_most(waiting: dict[Lane, int], items_max: int) -> None:
    queue, caller = intake(flush_items_max=items_max), Caller()
    for lane, count in waiting.items():
        queue.submit(work_of(caller, lane, 1 + lane * 1_000, count))
    total = max(items_max, len(waiting))
    taken = lanes_of(queue.seal())
    assert sum(taken.values()) <= total
    room = total
    for lane in Lane:
        if lane in waiting:
            share = LANE_SHARES[lane]
            assert taken[lane] >= min(waiting[lane], max(1, (total - len(waiting)) * share.percent_min // 100))
            assert taken[lane] <= max(1, total * share.percent_max // 100)
            # Whoever comes before leaves to those behind their least and takes the rest.
            later = sum(
                min(waiting[other], 1 + (total - len(waiting)) * LANE_SHARES[other].percent_min // 100)
                for other in waiting
                if other > lane
            )
            assert taken[lane] == min(waiting[lane], max(1, total * share.percent_max // 100), room - later)
            room -= taken[lane]
        else:
            assert not taken[lane]


def test_the_least_of_all_lanes_add_up_to_less_than_a_flush() -> None:
    assert sum(share.percent_min for share in LANE_SHARES.values()) < 100
    assert set(LANE_SHARES) == set(Lane)


def test_inserts_are_left_out_when_that_is_asked_for() -> None:
    queue, caller = intake(), Caller()
    queue.submit(caller.inserts(1, 1))
    queue.submit(caller.acks(2))
    assert numbers_of(queue.seal(with_inserts=False)) == [2]
    assert not queue.seal(with_inserts=False)
    assert numbers_of(queue.seal()) == [1]


def test_the_pace_is_kept_within_the_limit() -> None:
    queue, caller = intake(flush_items_max=10), Caller()
    queue.submit(caller.inserts(1, *[1] * 100))
    for pace, count in ((4, 2), (0, 1), (1_000, 5)):
        queue.set_flush_items_max(pace)
        assert len(queue.seal()) == count


@given(
    st.lists(st.lists(st.integers(0, 300), min_size=1, max_size=8), min_size=1, max_size=10),
    st.integers(1, 400),
    st.sampled_from(["insert", "nack", "hand-out"]),
)
def test_bytes_of_a_lane_are_never_more_than_the_cap_but_for_a_single_larger_entry(
    sizes: list[list[int]], bytes_max: int, kind: str
) -> None:
    queue, caller = intake(flush_bytes_max=bytes_max), Caller()
    for place, of in enumerate(sizes):
        first, namespace = place * 100 + 1, "nm"[place % 2]
        work: Work
        if kind == "insert":
            work = caller.inserts(first, *of, namespace=namespace)
        elif kind == "nack":
            events = [Event(EventKind.NACK, first + i, metadata=bytes(size)) for i, size in enumerate(of)]
            work = Events(namespace, events, lambda: None)
        else:
            work = caller.hand_out(*range(first, first + len(of)), namespace=namespace, read_bytes=of[0])
        queue.submit(work)
    entries = sum(map(len, sizes))
    while len(queue):
        batch = sealed(queue)
        assert batch
        assert is_within(batch.parts, bytes_max)
        entries -= len(batch)
    assert entries == 0


def test_a_lane_with_large_entries_does_not_stop_another() -> None:
    queue, caller = intake(flush_bytes_max=100), Caller()
    queue.submit(caller.hand_out(1, 2, read_bytes=90))
    queue.submit(caller.inserts(10, 60, 60))
    assert numbers_of(sealed(queue)) == [1, 10]


# --------------------------------------------------------------------- namespaces


def test_what_a_namespace_queues_is_sealed_in_its_order() -> None:
    queue, caller = intake(flush_items_max=20), Caller()
    for first in range(1, 100, 7):
        queue.submit(caller.inserts(first, *[1] * 7, namespace="n"))
        queue.submit(caller.inserts(1_000 + first, *[1] * 7, namespace="m"))
    found: list[int] = []
    while len(queue):
        found += numbers_of(sealed(queue))
    mine = [number for number in found if number < 1_000]
    assert mine == sorted(mine)
    assert len(mine) * 2 == len(found)


@settings(max_examples=40)
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
            queue.submit(work_of(caller, lane, 1 + place * 1_000_000 + first, work_size, name))
    got: Counter[str] = Counter()
    for _ in range(seals):
        got += namespaces_of(sealed(queue))
    for one in names:
        for other in names:
            turns = TURN_COST_MAX / weight[one] + TURN_COST_MAX / weight[other]
            assert abs(got[one] / weight[one] - got[other] / weight[other]) <= turns


def test_a_namespace_pays_for_its_bytes() -> None:
    queue = intake(flush_items_max=1_000, flush_bytes_max=1 << 20, queue_bytes_max=1 << 30)
    caller = Caller()
    for first in range(0, 1_000, 10):
        queue.submit(caller.inserts(first, *[10 * 1024 - 1] * 10, namespace="large"))
    for first in range(1_000, 3_000, 10):
        queue.submit(caller.inserts(first, *[1] * 10, namespace="small"))
    got: Counter[str] = Counter()
    for _ in range(3):
        got += namespaces_of(sealed(queue))
    # An item costs 1, and 1 for each KiB of it: 10 here and 1 there.
    assert got["small"] >= 9 * got["large"]


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(1, 100), st.integers(1, 120)), min_size=1, max_size=5),
    st.integers(12, 300),
    st.integers(0, 4),
    st.sampled_from([Lane.ACK, Lane.LEASE, Lane.INSERT]),
)
def test_a_quiet_namespaces_item_is_in_the_very_next_flush(
    floods: list[tuple[int, int]], items_max: int, flushes: int, lane: Lane
) -> None:
    """However long the queues, and however great the weights, of others."""
    weight = {f"n{place}": weight for place, (weight, _) in enumerate(floods)}
    queue = intake(weight, flush_items_max=items_max, queue_items_max=10_000_000)
    caller = Caller()
    for place, (_, work_size) in enumerate(floods):
        for first in range(0, (flushes + 2) * items_max, work_size):
            queue.submit(work_of(caller, lane, 1 + place * 1_000_000 + first, work_size, f"n{place}"))
    for _ in range(flushes):
        sealed(queue)
    queue.submit(work_of(caller, lane, 100_000_000, 1, "quiet"))
    assert namespaces_of(sealed(queue))["quiet"] == 1


def test_one_that_takes_less_than_its_part_is_never_late() -> None:
    queue, caller = intake({"n": 3}, flush_items_max=20), Caller()
    for first in range(0, 1_000, 10):
        queue.submit(caller.inserts(1 + first, *[1] * 10))
    for flush in range(40):
        queue.submit(caller.inserts(10_000 + flush, 1, namespace="m"))
        assert namespaces_of(sealed(queue)) == {"n": 9, "m": 1}


def test_one_that_comes_with_single_items_gets_no_more_than_its_part() -> None:
    queue, caller = intake({"n": 10}, flush_items_max=24), Caller()
    for first in range(0, 1_000, 10):
        queue.submit(caller.inserts(1 + first, *[1] * 10))
    got: Counter[str] = Counter()
    queued = 0
    for _ in range(40):
        # There is always one more, but never much.
        while queued - got["m"] < 12:
            queue.submit(caller.inserts(10_000 + queued, 1, namespace="m"))
            queued += 1
        got += namespaces_of(sealed(queue))
    assert got["m"] <= got["n"] / 10 + 2 * TURN_COST_MAX


# ---------------------------------------------------------------- short flushes


def test_who_waits_with_little_behind_much_is_in_a_short_flush() -> None:
    queue, caller = intake(express_items=20), Caller()
    queue.submit(work_of(caller, Lane.INSERT, 1, 500, "flood"))
    assert len(sealed(queue)) == 50
    queue.submit(work_of(caller, Lane.ACK, 1_000, 3, "quiet"))
    queue.submit(work_of(caller, Lane.INSERT, 2_000, 2, "quiet"))
    batch = sealed(queue)
    assert namespaces_of(batch)["quiet"] == 5
    assert len(batch) <= 20


def test_a_flood_gets_every_other_flush_in_full() -> None:
    queue, caller = intake(express_items=20), Caller()
    queue.submit(work_of(caller, Lane.INSERT, 1, 500, "flood"))
    sizes = []
    for number in range(6):
        queue.submit(work_of(caller, Lane.INSERT, 1_000 + number, 1, "quiet"))
        sizes.append(len(sealed(queue)))
    assert sizes == [10, 50, 10, 50, 10, 50]


def test_a_flood_alone_has_no_short_flushes() -> None:
    queue, caller = intake(express_items=20), Caller()
    for first, namespace in ((1, "flood"), (1_000, "other"), (2_000, "")):
        queue.submit(work_of(caller, Lane.INSERT, first, 300 if namespace else 3, namespace))
    assert [len(sealed(queue)) for _ in range(4)] == [50, 50, 50, 50]


def test_a_short_flush_is_short_in_bytes_too() -> None:
    queue, caller = intake(express_items=20, flush_bytes_max=1 << 20, queue_bytes_max=1 << 24), Caller()
    queue.submit(caller.inserts(1, *[10_000] * 60, namespace="flood"))
    queue.submit(caller.inserts(1_000, 10_000, namespace="quiet"))
    batch = sealed(queue)
    assert namespaces_of(batch) == {"flood": 1, "quiet": 1}


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(Lane), st.integers(1, 40)), max_size=30))
def test_short_flushes_follow_from_what_waits(works: list[tuple[str, Lane, int]]) -> None:
    queue, caller = intake(express_items=20, queue_items_max=100_000), Caller()
    waiting: Counter[str] = Counter()
    short = False
    for place, (namespace, lane, count) in enumerate(works):
        queue.submit(work_of(caller, lane, 1 + place * 100, count, namespace), is_internal=True)
        waiting[namespace] += count
        if place % 3 == 2:
            few = any(0 < waiting[name] <= 10 for name in waiting)
            short = few and waiting.total() > 40 and not short
            batch = sealed(queue)
            lanes = len(lanes_of(batch))
            assert len(batch) <= max(20 if short else 100, lanes)
            if not short:
                assert len(batch) >= min(waiting.total(), *(share.percent_max for share in LANE_SHARES.values()))
            waiting -= namespaces_of(batch)
