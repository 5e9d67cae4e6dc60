"""Tests which host gets a client's new items."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from random import Random
from types import MappingProxyType
from typing import Any, Final

from foqs_client.host_loads import BUSY_ITEMS, FULL_S, HALF_LIFE_S, HostLoads
from foqs_client.routing_table import Address
from foqs_client.types import Host, Routing

NAMES = ("a", "b", "c", "d")
NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
HOSTS: list[Address] = [(name, 1) for name in NAMES]


def known_loads(
    loads: Mapping[str, float] = NOTHING,
    region: str | None = None,
    regions: Mapping[str, str] = NOTHING,
    capacity: Mapping[str, int] = NOTHING,
) -> HostLoads:
    """Return the loads that a client knows at second 0."""
    known = HostLoads(region, Random(1))
    hosts = [
        Host(name, 1, regions.get(name), "default", 1, False, loads.get(name, 0.0), None, capacity=capacity.get(name))
        for name in NAMES
    ]
    known.on_routing_read(Routing(1, hosts, []), 0.0)
    return known


def firsts(known: HostLoads, now_s: float = 0.0, calls: int = 400) -> Counter[str]:
    """Return the number of calls for which each host is first."""
    return Counter(known.order(HOSTS, now_s)[0][0] for _ in range(calls))


def test_hosts_that_are_not_busy_take_turns_with_any_load() -> None:
    assert firsts(known_loads({"a": BUSY_ITEMS, "b": 1.0})) == dict.fromkeys(NAMES, 100)


def test_every_host_is_in_the_order_once() -> None:
    known = known_loads({"a": 9_000.0}, region="west", regions={"b": "west"})
    known.on_refused(("c", 1), 0.0)
    assert sorted(known.order(HOSTS, 0.0)) == HOSTS


def test_busy_host_is_left_out_and_its_items_are_spread() -> None:
    found = firsts(known_loads({"a": 1_000.0}))
    assert found["a"] == 0
    assert all(110 <= found[name] <= 160 for name in "bcd")


def test_host_that_is_less_than_twice_as_busy_keeps_its_turns() -> None:
    assert firsts(known_loads({"a": 190.0, **dict.fromkeys("bcd", 100.0)})) == dict.fromkeys(NAMES, 100)


def test_equally_busy_hosts_take_turns() -> None:
    assert firsts(known_loads(dict.fromkeys(NAMES, 1_000.0))) == dict.fromkeys(NAMES, 100)


def test_host_with_more_capacity_is_busy_later() -> None:
    assert firsts(known_loads({"a": 4_000.0, **dict.fromkeys("bcd", 1_000.0)}, capacity={"a": 4})) == dict.fromkeys(
        NAMES, 100
    )


def test_reported_load_counts_less_with_time() -> None:
    known = known_loads({"a": 2 * BUSY_ITEMS + 1.0})
    assert firsts(known, 0.0)["a"] == 0
    assert firsts(known, HALF_LIFE_S * 1.1)["a"] == 100


def test_calls_in_flight_count_at_once() -> None:
    known = known_loads()
    known.add_in_flight(("a", 1), BUSY_ITEMS)
    known.add_in_flight(("a", 1), 1)
    assert firsts(known)["a"] == 0
    known.remove_in_flight(("a", 1), BUSY_ITEMS)
    assert firsts(known)["a"] == 100
    known.remove_in_flight(("a", 1), 1)
    larger = known_loads(capacity={"a": 4})
    larger.add_in_flight(("a", 1), 4 * BUSY_ITEMS)
    assert firsts(larger)["a"] == 100
    assert known.load(("a", 1), 0.0) == 0


def test_host_without_room_is_last_for_a_while() -> None:
    known = known_loads()
    known.on_refused(("b", 1), 0.0)
    assert firsts(known)["b"] == 0
    assert {known.order(HOSTS, 0.0)[3] for _ in range(4)} == {("b", 1)}
    assert min(firsts(known)[name] for name in "acd") >= 132
    assert firsts(known, FULL_S * 1.1)["b"] == 100


def test_hosts_of_the_clients_region_are_first_while_they_have_room() -> None:
    known = known_loads(dict.fromkeys("ab", 9_000.0), region="west", regions={"a": "west", "b": "west", "c": "east"})
    assert firsts(known) == {"a": 200, "b": 200}
    known.on_refused(("a", 1), 0.0)
    assert firsts(known) == {"b": 400}
    known.on_refused(("b", 1), 0.0)
    assert firsts(known) == {"c": 200, "d": 200}


def test_all_hosts_are_equal_if_none_is_in_the_region() -> None:
    assert firsts(known_loads(region="nowhere")) == dict.fromkeys(NAMES, 100)


def test_host_that_is_no_longer_reported_has_no_load() -> None:
    known = known_loads({"a": 1_000.0})
    known.on_routing_read(Routing(2, [], []), 1.0)
    assert known.load(("a", 1), 1.0) == 0
