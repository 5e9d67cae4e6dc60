"""The places of calls that wait: shares of holders, and nothing is left when all calls have ended."""

from __future__ import annotations

from random import Random

from foqs.core.limits.waiting_calls import WaitingCalls, WaitingPlace


def fill(waiting: WaitingCalls, *holders: str, byte_count: int = 1) -> int:
    """Reserve until a call is refused; return how many were not."""
    count = 0
    while waiting.reserve(holders, byte_count) is not None:
        count += 1
    return count


def test_one_owner_gets_half_of_the_places_and_the_next_ones_less_each() -> None:
    waiting = WaitingCalls(100, 1_000)
    assert [fill(waiting, holder) for holder in ("a", "b", "c", "d")] == [50, 25, 13, 6]
    assert waiting.call_count == 94


def test_owners_that_take_turns_get_equal_shares_and_leave_one_for_the_next() -> None:
    waiting = WaitingCalls(100, 1_000)
    shares = dict.fromkeys("abc", 0)
    for _ in range(100):
        for holder in shares:
            shares[holder] += waiting.reserve((holder,), 1) is not None
    assert list(shares.values()) == [25, 25, 25]


def test_an_owner_cannot_take_more_by_many_others_of_the_same_call() -> None:
    waiting = WaitingCalls(100, 1_000)
    names = [f"namespace-{n}" for n in range(100)]
    assert sum(waiting.reserve(("principal", name), 1) is not None for name in names) == 50
    assert waiting.reserve(("another", names[99]), 1)


def test_large_calls_are_bounded_by_their_bytes() -> None:
    waiting = WaitingCalls(1_000, 1_000)
    assert fill(waiting, "a", byte_count=100) == 5
    assert fill(waiting, "b", byte_count=100) == 3
    assert not waiting.reserve(("c",), 201)
    assert waiting.reserve(("c",), 200)


def test_places_that_were_given_back_are_free() -> None:
    rng = Random(1)
    waiting = WaitingCalls(20, 200)
    held: list[WaitingPlace] = []
    for _ in range(2_000):
        size = rng.randrange(30)
        place = waiting.reserve((rng.choice("ab"), rng.choice("xyz")), size) if rng.random() < 0.5 else None
        if place is not None:
            held.append(place)
        elif held:
            waiting.release_reservation(held.pop(rng.randrange(len(held))))
        assert (waiting.call_count, waiting.byte_count) == (len(held), sum(place.byte_count for place in held))
        assert waiting.call_count <= 20
        assert waiting.byte_count <= 200
    for place in held:
        waiting.release_reservation(place)
    assert waiting.holder_count == 0
    assert fill(waiting, "a") == 10


def test_an_owner_without_a_place_is_not_remembered() -> None:
    waiting = WaitingCalls(2, 200)
    first = waiting.reserve(("principal", "first"), 1)
    assert first is not None
    assert waiting.reserve(("principal", "refused"), 1) is None
    assert waiting.holder_count == 2
    waiting.release_reservation(first)
    assert waiting.holder_count == 0
