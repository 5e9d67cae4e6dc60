"""Tests which host a client asks for the best items."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from random import Random
from typing import Any

from foqs_client.best_priorities import FRESH_S, HOSTS_MAX, TOPICS_MAX, BestPriorities
from foqs_client.routing_table import Address
from foqs_contract.idl import ttypes

A, B, C = HOSTS = [("a", 1), ("b", 1), ("c", 1)]


def availability(at: Address, priority: int | None, age_ms: int = 0, topic: str = "t") -> Any:
    return ttypes.TopicAvailability(topic, ttypes.HostAddress(*at), priority, 1, age_ms)


def known(
    best: Mapping[Address, int | None], now: float = 0.0, topic: str = "t", cache: BestPriorities | None = None
) -> BestPriorities:
    """Return a cache to which each host reported its own best priority."""
    cache = cache or BestPriorities()
    for at, priority in best.items():
        reports = [] if priority is None else [availability(at, priority, topic=topic)]
        cache.on_dequeue_reply(at, [topic], reports, now, has_items=True)
    return cache


def first(cache: BestPriorities, now: float = 0.0, topics: Sequence[str] = ("t",)) -> Address:
    return cache.order(HOSTS, topics, now)[0]


def test_host_with_the_best_priority_is_first_and_an_empty_host_is_last() -> None:
    cache = known({A: None, B: 3, C: -7})
    assert cache.order(HOSTS, ["t"], 1.0) == [C, B, A]


def test_hosts_that_have_equally_good_items_take_turns() -> None:
    cache = known({A: 2, B: 2, C: 5})
    assert [first(cache) for _ in range(6)] in ([A, B] * 3, [B, A] * 3)
    unknown = BestPriorities()
    assert [first(unknown) for _ in range(6)] == [A, B, C] * 2


def test_host_without_a_report_is_first() -> None:
    cache = known({A: 0, C: None})
    assert cache.order(HOSTS, ["t"], 0.0) == [B, A, C]


def test_old_report_does_not_count() -> None:
    cache = known({A: 0, B: None, C: None})
    assert first(cache, FRESH_S - 0.1) == A
    known({A: 0}, FRESH_S - 0.1, cache=cache)
    assert [first(cache, FRESH_S) for _ in range(2)] == [B, C]


def test_newer_report_of_another_host_counts() -> None:
    cache = known({A: 4, B: 6, C: 5}, now=10.0)
    cache.on_dequeue_reply(A, ["t"], [availability(A, 4), availability(B, 1, age_ms=2_000)], 11.0, has_items=True)
    assert first(cache, 11.0) == A
    cache.on_dequeue_reply(A, ["t"], [availability(A, 4), availability(B, 1, age_ms=500)], 11.0, has_items=True)
    assert first(cache, 11.0) == B


def test_host_that_delivered_nothing_counts_as_empty() -> None:
    cache = known({A: 0, B: 9, C: 9})
    cache.on_dequeue_reply(A, ["t"], [availability(A, 0)], 0.1, has_items=False)
    assert first(cache, 0.1) != A


def test_host_that_sends_no_report_stays_unknown() -> None:
    cache = known({B: 1, C: 1})
    cache.on_dequeue_reply(A, ["t"], None, 0.0, has_items=True)
    assert first(cache) == A


def test_host_of_a_released_item_is_first() -> None:
    cache = known({A: 4, B: None, C: None})
    cache.on_released(B, "t", 1, 0.1)
    assert first(cache, 0.1) == B
    cache.on_released(A, "t", 9, 0.1)
    known({B: None}, 0.2, cache=cache)
    assert first(cache, 0.2) == A


def test_host_is_known_empty_with_fresh_reports_of_all_topics() -> None:
    cache = known({A: None, B: 3}, topic="t")
    known({A: None, B: None}, topic="u", cache=cache)
    assert cache.is_known_empty(A, ["t", "u"], 0.0)
    assert not cache.is_known_empty(A, ["t", "u"], FRESH_S)
    assert not cache.is_known_empty(B, ["t", "u"], 0.0)
    assert not cache.is_known_empty(A, ["t", "v"], 0.0)
    assert not cache.is_known_empty(C, ["t"], 0.0)


def test_topics_of_one_call_take_turns_in_choosing_the_host() -> None:
    cache = known({A: 0, B: None, C: None}, topic="near")
    known({A: None, B: 9, C: None}, topic="far", cache=cache)
    known({A: None, B: None, C: None}, topic="empty", cache=cache)
    asked = Counter(first(cache, topics=("near", "far", "empty")) for _ in range(30))
    assert set(asked) == {A, B}
    assert min(asked.values()) >= 10


def remembered_hosts(cache: BestPriorities, topic: str) -> Collection[object]:
    return cache._topics[topic]


def test_memory_of_topics_and_hosts_is_bounded() -> None:
    cache = BestPriorities()
    for n in range(TOPICS_MAX + 5):
        cache.on_dequeue_reply(A, [f"t{n}"], [], 0.0, has_items=False)
    assert len(cache) == TOPICS_MAX
    cache.on_dequeue_reply(A, ["t"], [availability(("h", n), 1) for n in range(3 * HOSTS_MAX)], 0.0, has_items=True)
    assert len(remembered_hosts(cache, "t")) <= HOSTS_MAX


def test_host_that_left_the_routing_table_is_forgotten() -> None:
    cache = known({A: 1, B: 2, C: 3})
    assert first(cache) == A
    assert cache.order([B, C], ["t"], 0.0) == [B, C]
    assert A not in remembered_hosts(cache, "t")


def test_single_consumer_of_three_hosts_is_never_far_from_the_best() -> None:
    """Dequeue a backlog of 30,000 items in batches of ten: less than one in a hundred is out of order."""
    rng = Random(3)
    left: dict[Address, list[tuple[int, int]]] = {host: [] for host in HOSTS}
    for number in range(30_000):
        left[rng.choice(HOSTS)].append((rng.randint(0, 9), number))
    place = {item: at for at, item in enumerate(sorted(item for items in left.values() for item in items))}
    for items in left.values():
        items.sort(reverse=True)
    cache, taken = BestPriorities(), list[tuple[int, int]]()
    while len(taken) < len(place):
        for host in cache.order(HOSTS, ["t"], len(taken) / 10_000):
            found = [left[host].pop() for _ in range(min(10, len(left[host])))]
            now = [availability(host, left[host][-1][0])] if left[host] else []
            cache.on_dequeue_reply(host, ["t"], now, len(taken) / 10_000, has_items=bool(found))
            taken += found
            if found:
                break
    displaced = [abs(at - place[item]) for at, item in enumerate(taken)]
    assert sum(displaced) / len(displaced) <= 0.01 * len(place)
