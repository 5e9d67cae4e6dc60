"""How flushes are gathered."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.core.batch import Intake, Work
from foqs.core.errors import DeadlineExceeded, FoqsError, Overloaded, UnknownOutcome
from foqs.core.item import NewItem
from foqs.core.life import Event, Fate, Kind, Verdict
from tests.support.builders import new_item

DONE = Verdict(Fate.KEPT)


def intake(flush: int = 10, queue: int = 100, size: int = 10_000) -> Intake:
    return Intake(flush, size, queue, size)


def acks(*ids: int) -> Work:
    return Work(lambda: None, events=[Event(Kind.ACK, number) for number in ids])


def inserts(count: int, payload: bytes = b"x") -> Work:
    items: Sequence[tuple[int, NewItem]] = [(n, new_item(payload=payload)) for n in range(1, count + 1)]
    return Work(lambda: None, inserts=items)


def ids_of(entries: Sequence[tuple[Work, int]]) -> list[int]:
    return [work.events[index].id for work, index in entries]


def test_an_id_occurs_once_in_a_flush_and_the_first_comer_wins() -> None:
    queue = intake()
    first, second = acks(1, 2), acks(2, 3)
    queue.submit(first)
    queue.submit(second)
    flush = queue.seal_events()
    assert ids_of(flush) == [1, 2, 3]
    assert flush[1][0] is first
    assert ids_of(queue.seal_events()) == [2]


def test_later_events_on_one_id_keep_their_order() -> None:
    queue = intake()
    works = [acks(7) for _ in range(3)]
    for work in works:
        queue.submit(work)
    assert [queue.seal_events()[0][0] for _ in range(3)] == works


def test_a_work_larger_than_a_flush_is_spread_over_several() -> None:
    queue = intake(flush=4)
    queue.submit(acks(*range(1, 11)))
    assert [len(queue.seal_events()) for _ in range(4)] == [4, 4, 2, 0]


def test_a_full_queue_refuses_a_whole_work_and_keeps_nothing_of_it() -> None:
    queue = intake(queue=5)
    queue.submit(acks(1, 2, 3))
    with pytest.raises(Overloaded) as refused:
        queue.submit(acks(4, 5, 6))
    assert refused.value.retry_after_ms
    assert len(queue) == 3


def test_a_flood_of_inserts_leaves_room_for_acks() -> None:
    queue = intake(queue=5)
    queue.submit(inserts(5))
    queue.submit(acks(1))
    assert ids_of(queue.seal_events()) == [1]


def test_bytes_are_bounded_and_given_back() -> None:
    queue = intake(size=1_000)
    queue.submit(inserts(3, payload=b"x" * 300))
    with pytest.raises(Overloaded):
        queue.submit(inserts(1, payload=b"x" * 300))
    queue.seal_inserts()
    queue.submit(inserts(3, payload=b"x" * 300))


def test_a_flush_takes_bytes_up_to_its_cap_and_always_one_item() -> None:
    queue = Intake(100, 500, 100, 10_000)
    queue.submit(inserts(5, payload=b"x" * 400))
    assert [len(queue.seal_inserts()) for _ in range(4)] == [2, 2, 1, 0]


def test_expiry_withdraws_what_is_queued_and_leaves_what_is_begun_unknown() -> None:
    queue = intake(flush=2)
    work = acks(1, 2, 3)
    queue.submit(work)
    queue.seal_events()
    assert work.expire() == [2]
    assert [type(result) for result in work.results] == [UnknownOutcome, UnknownOutcome, DeadlineExceeded]
    assert queue.seal_events() == []


def test_a_withdrawn_insert_gives_its_bytes_back() -> None:
    queue = intake(size=500)
    work = inserts(1, payload=b"x" * 400)
    queue.submit(work)
    work.expire()
    assert queue.seal_inserts() == []
    queue.submit(inserts(1, payload=b"x" * 400))


def test_a_result_is_given_once_and_the_last_one_finishes_the_work() -> None:
    finished: list[int] = []
    work = Work(lambda: finished.append(1), events=[Event(Kind.ACK, 1), Event(Kind.ACK, 2)])
    assert work.settle(0, DONE)
    assert not work.settle(0, DONE)
    assert finished == []
    assert work.settle(1, DONE)
    assert finished == [1]


def test_failing_a_work_tells_begun_entries_from_queued_ones() -> None:
    work = acks(1, 2)
    work.seal(0)
    gone, unknown = FoqsError.__subclasses__()[0]("a"), UnknownOutcome("b")
    work.fail(unsealed=gone, sealed=unknown)
    assert work.results == [unknown, gone]


def test_a_flush_reads_bytes_up_to_its_cap_and_always_one_event() -> None:
    queue = Intake(100, 500, 100, 10_000)
    queue.submit(Work(lambda: None, events=[Event(Kind.HAND_OUT, n) for n in range(1, 6)], read_bytes=300))
    assert [len(queue.seal_events()) for _ in range(4)] == [2, 2, 1, 0]


def test_internal_events_pass_a_full_queue() -> None:
    queue = intake(queue=1)
    queue.submit(acks(1))
    queue.submit(acks(2), internal=True)
    assert len(queue) == 2


@given(st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=6), max_size=10), st.integers(1, 7))
def test_every_event_is_sealed_exactly_once_and_in_order_of_its_id(groups: list[list[int]], flush: int) -> None:
    queue = intake(flush=flush, queue=1_000)
    works = [acks(*group) for group in groups]
    for work in works:
        queue.submit(work)
    expected: dict[int, list[tuple[int, int]]] = {}
    for number, work in enumerate(works):
        for index, event in enumerate(work.events):
            expected.setdefault(event.id, []).append((number, index))
    seen: dict[int, list[tuple[int, int]]] = {}
    while len(queue):
        sealed = queue.seal_events()
        assert 0 < len(sealed) <= flush
        assert len(set(ids_of(sealed))) == len(sealed)
        for work, index in sealed:
            seen.setdefault(work.events[index].id, []).append((works.index(work), index))
    assert seen == expected
