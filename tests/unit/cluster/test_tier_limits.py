"""The limits of a namespace over all hosts of a tier."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

import pytest

from foqs.core.limits.whole_limit import WholeLimits
from foqs.options.options import NamespaceOptions
from foqs.queue.backlogs import Backlogs
from foqs.queue.quota import Quota
from foqs_contract.errors import LimitExceeded, RateLimited
from foqs_contract.idl import ttypes
from tests.support.builders import NAMESPACE as DEFAULTS
from tests.support.builders import changed, new_item
from tests.support.rate_tier import NAMESPACE, Rates, RateTier, between

LIMIT = 1_200
"""Enqueues a minute: 20 a second."""
FLOOD = 5 * LIMIT


def rate(per_minute: int = LIMIT) -> NamespaceOptions:
    return changed(DEFAULTS, enqueues_per_minute=per_minute)


def backlog(items: int = 0, size: int = 0) -> NamespaceOptions:
    return changed(DEFAULTS, backlog_items_max=items, backlog_bytes_max=size)


def at(*hosts: int, each: float = FLOOD) -> Rates:
    return lambda at_s, host: each if host in hosts else 0.0


def moving(hosts: int, every_s: float, each: float = FLOOD) -> Rates:
    return lambda at_s, host: each if int(at_s / every_s) % hosts == host else 0.0


def at_random(hosts: int, every_s: float, seed: int, limit: int = LIMIT) -> Rates:
    """Never less than the limit over all hosts, and as unlike as can be."""
    rng = Random(seed)
    drawn = [[rng.choice([0, 0, 10, limit / 4, 2 * limit, 10 * limit]) for _ in range(hosts)] for _ in range(200)]
    for each in drawn:
        each[rng.randrange(hosts)] += 2 * limit
    return lambda at_s, host: drawn[int(at_s / every_s)][host]


# -------------------------------------------------------------------------- rate

PATTERNS: dict[str, Rates] = {
    "one host": at(1),
    "all hosts": at(0, 1, 2, each=FLOOD / 3),
    "hardly more than the limit": at(0, each=1.1 * LIMIT),
    "one much, one little": lambda at_s, host: [FLOOD, LIMIT / 10, 0][host],
    "from host to host every 3 s": moving(3, 3),
    "from host to host every 5 s": moving(3, 5, 3 * LIMIT),
    "from host to host every 20 s": moving(3, 20),
    **{f"random {seed}": at_random(3, 2.0 + seed, seed) for seed in range(4)},
}


@pytest.mark.once
@pytest.mark.parametrize("pattern", PATTERNS)
def test_all_hosts_together_are_held_to_the_rate_within_a_twentieth_of_any_minute(pattern: str) -> None:
    tier = RateTier(3, rate())
    tier.run(100, PATTERNS[pattern])
    least, most = tier.minutes()
    assert least >= 0.95 * LIMIT
    assert most <= 1.05 * LIMIT


@pytest.mark.once
@pytest.mark.parametrize(("hosts", "per_minute"), [(2, 60_000), (8, 1_200)])
def test_rate_holds_for_any_number_of_hosts_and_any_limit(hosts: int, per_minute: int) -> None:
    patterns = [
        at(*range(hosts), each=5 * per_minute / hosts),
        moving(hosts, 4, 2 * per_minute),
        at_random(hosts, 4, 7, per_minute),
    ]
    for seed, pattern in enumerate(patterns):
        tier = RateTier(hosts, rate(per_minute), seed, items=max(1, per_minute // 1_200))
        tier.run(90, pattern)
        least, most = tier.minutes()
        assert 0.95 * per_minute <= least
        assert most <= 1.05 * per_minute


@pytest.mark.once
@pytest.mark.parametrize("every_s", [2, 10, 30])
def test_burst_after_a_quiet_time_exceeds_the_rate_by_at_most_a_twentieth(every_s: float) -> None:
    tier = RateTier(3, rate())
    tier.run(130, lambda at_s, host: FLOOD if int(at_s / every_s) % 2 else 0.0)
    assert tier.minutes()[1] <= 1.05 * LIMIT


def test_rate_holds_with_lost_and_late_replies() -> None:
    tier = RateTier(3, rate())
    rng = Random(1)
    tier.lost = lambda asking, asked: rng.random() < 0.2
    tier.run(100, PATTERNS["random 1"])
    least, most = tier.minutes()
    assert least >= 0.9 * LIMIT
    assert most <= 1.05 * LIMIT


def test_small_rates_are_held_to_an_item_a_host() -> None:
    tier = RateTier(3, rate(30))
    tier.run(200, at(0, 1, 2, each=300))
    least, most = tier.minutes(since_s=10)
    assert least >= 30 - 3
    assert most <= 30 + 3


def test_allocation_follows_arrivals_within_two_seconds() -> None:
    tier = RateTier(3, rate())
    flood = moving(3, 10)
    for turn in range(6):
        tier.run(2, flood)
        parts = [tier.partition(number) for number in range(3)]
        assert parts[turn % 3] > 0.8
        assert sum(parts) <= 1.06
        tier.run(8, flood)
        assert tier.partition(turn % 3) > 0.95


@pytest.mark.once
@pytest.mark.parametrize("pattern", PATTERNS)
def test_allocations_together_are_never_much_more_than_the_limit(pattern: str) -> None:
    tier = RateTier(3, rate())
    for _ in range(200):
        tier.run(0.2, PATTERNS[pattern])
        assert sum(tier.partition(number) for number in range(3)) <= 1.06


def test_first_items_of_a_host_pass_during_a_flood_at_another() -> None:
    tier = RateTier(3, rate())
    tier.run(30, at(0))
    assert tier.offer(1) is None
    assert tier.offer(2) is None


def test_refused_caller_retries_after_the_allocation_has_followed() -> None:
    tier = RateTier(3, rate(60))
    tier.run(30, at(0, each=600))
    tier.offer(1)
    error = tier.offer(1)
    assert isinstance(error, RateLimited)
    assert error.field == "items"
    assert error.retry_after_ms is not None
    assert 0 < error.retry_after_ms <= 2_000
    assert "60 enqueues a minute for all hosts together" in error.message


def test_call_larger_than_the_bucket_passes_and_leaves_a_debt() -> None:
    tier = RateTier(3, rate(600), items=100)
    tier.run(3)
    assert tier.offer(0) is None
    assert isinstance(tier.offer(0), RateLimited)
    tier.run(180, at(0, 1, 2, each=6_000))
    least, most = tier.minutes(since_s=30)
    assert least >= 600 - 100
    assert most <= 600 + 3 * 100


# ------------------------------------------------------------------------ trouble


def test_partitioned_hosts_keep_their_allocations() -> None:
    tier = RateTier(3, rate())
    both = at(0, 2, each=FLOOD)
    tier.run(30, both)
    tier.lost = between([(0, 1), (2,)])
    tier.run(75, both)
    least, most = tier.minutes(since_s=30)
    assert least >= 0.95 * LIMIT
    assert most <= 1.05 * LIMIT
    tier.lost = between([(0, 1, 2)])
    tier.run(75, both)
    least, most = tier.minutes(since_s=105)
    assert least >= 0.95 * LIMIT
    assert most <= 1.05 * LIMIT


@pytest.mark.once
@pytest.mark.parametrize("sides", [[(0, 1), (2,)], [(0,), (1,), (2,)]])
@pytest.mark.parametrize("before", [at(), at(0), at(2)])
def test_partition_does_not_double_the_rate(sides: list[tuple[int, ...]], before: Rates) -> None:
    tier = RateTier(3, rate())
    tier.run(20, before)
    tier.lost = between(sides)
    tier.run(70, at(0, 1, 2))
    assert tier.minutes()[1] <= 1.06 * LIMIT
    assert all(tier.partition(number) > 0 for number in range(3))


def test_host_that_receives_no_reports_keeps_its_allocation() -> None:
    tier = RateTier(3, rate())
    tier.run(20, at(0, 2))
    tier.lost = lambda asking, asked: asking == 2
    tier.run(80, at(0, 2))
    least, most = tier.minutes(since_s=20)
    assert least >= 0.95 * LIMIT
    assert most <= 1.05 * LIMIT


def test_hosts_without_any_reports_share_equally() -> None:
    tier = RateTier(4, rate())
    tier.lost = between([])
    tier.run(90, at(0, 1, 2, 3))
    least, most = tier.minutes()
    assert least >= 0.95 * LIMIT
    assert most <= 1.05 * LIMIT
    assert [tier.partition(number) for number in range(4)] == [0.25] * 4


def test_dead_host_keeps_its_allocation_until_it_leaves_the_plan() -> None:
    tier = RateTier(3, rate())
    tier.run(60, at(0, 1, each=FLOOD))
    tier.die(1)
    tier.run(6, at(0))
    assert tier.partition(0) < 0.6
    tier.forget(1)
    tier.run(1, at(0))
    assert tier.partition(0) > 0.95
    tier.run(100, at(0))
    assert tier.minutes()[1] <= 1.05 * LIMIT
    assert tier.minutes(since_s=68)[0] >= 0.95 * LIMIT


def test_rate_holds_while_hosts_come_and_go() -> None:
    tier = RateTier(3, rate())
    for number in range(6):
        tier.run(25, lambda at_s, host: FLOOD / 3)
        tier.die(number)
        tier.forget(number)
        tier.run(1, lambda at_s, host: FLOOD / 3)
        tier.join()
    least, most = tier.minutes()
    assert least >= 0.95 * LIMIT
    # A host that comes brings a third of the bucket, twice in a minute or three times.
    assert most <= 1.07 * LIMIT


def test_new_host_may_accept_an_item_and_has_no_burst() -> None:
    tier = RateTier(2, rate())
    tier.run(10)
    new = tier.join()
    assert tier.offer(new) is None
    assert isinstance(tier.offer(new), RateLimited)
    tier.run(3)
    assert [tier.offer(new) for _ in range(10)] == [None] * 10


def test_last_host_gets_the_whole_limit() -> None:
    tier = RateTier(2, rate())
    tier.run(30, at(0, 1))
    tier.die(1)
    tier.forget(1)
    tier.run(100, at(0))
    least, most = tier.minutes(since_s=32)
    assert tier.partition(0) == 1.0
    assert least >= 0.95 * LIMIT
    assert most <= 1.05 * LIMIT


def test_a_changed_rate_holds_on_all_hosts() -> None:
    tier = RateTier(3, rate())
    tier.run(30, at(0, 1, 2))
    tier.settings = rate(LIMIT // 4)
    tier.run(70, at(0, 1, 2))
    assert tier.minutes(since_s=31)[1] <= 1.05 * LIMIT / 4
    tier.settings = rate(LIMIT * 4)
    tier.run(70, at(0, 1, 2))
    least, most = tier.minutes(since_s=101)
    assert least >= 0.95 * LIMIT * 4
    assert most <= 1.05 * LIMIT * 4


def test_idle_allocations_are_forgotten_and_unlimited_namespaces_are_ignored() -> None:
    tier = RateTier(2, rate())
    tier.run(5, at(0, 1))
    tier.run(70)
    limits = tier.hosts[0].limits

    def is_empty() -> bool:
        return not limits._allocations

    assert is_empty()
    assert limits.namespace_reports() == []
    peer: Any = 1
    limits.on_namespace_reports(peer, [ttypes.NamespaceReport("unheard of", 1, 1, 1, 1)])
    assert is_empty()


def test_false_report_of_a_peer_costs_at_most_a_minute() -> None:
    tier = RateTier(2, rate())
    tier.run(5, at(0))
    tier.lost = between([])
    tier.run(1, at(0))
    peer: Any = 1
    tier.hosts[0].limits.on_namespace_reports(peer, [ttypes.NamespaceReport(NAMESPACE, -5, -5, -5, 1 << 62)])
    assert isinstance(tier.offer(0), RateLimited)
    tier.run(70)
    assert tier.offer(0) is None


# ----------------------------------------------------------------------- backlog


@pytest.mark.parametrize("settings", [backlog(items=300), backlog(size=300)])
def test_a_backlog_is_full_when_all_hosts_together_hold_its_limit(settings: NamespaceOptions) -> None:
    tier = RateTier(3, settings)
    tier.run(30, at(0, 1, 2, each=1_200))
    held = sum(host.backlogs.items for host in tier.hosts.values())
    assert 300 <= held <= 1.05 * 300
    error = tier.offer(0)
    assert isinstance(error, LimitExceeded)
    assert error.field == "items"
    assert error.retry_after_ms
    assert "for all hosts together" in error.message


@pytest.mark.once
@pytest.mark.parametrize("pattern", [at(0), moving(3, 3), *(at_random(3, 1.0 + seed, seed) for seed in range(3))])
@pytest.mark.parametrize("each", [1, 10])
def test_backlog_limit_is_exceeded_by_little(pattern: Rates, each: int) -> None:
    tier = RateTier(3, backlog(items=600), items=each)
    tier.run(30, pattern)
    held = sum(host.backlogs.items for host in tier.hosts.values())
    assert 600 - each <= held <= 1.05 * 600


def test_backlog_consumed_at_one_host_is_free_at_another_within_about_a_second() -> None:
    tier = RateTier(3, backlog(items=100))
    tier.run(30, at(0))
    assert isinstance(tier.offer(1), LimitExceeded)
    tier.hosts[0].backlogs.items = 0
    tier.run(1.2)
    assert tier.offer(1) is None
    tier.run(2, at(1))
    assert tier.hosts[1].backlogs.items >= 90


def test_backlog_of_a_lost_host_does_not_count() -> None:
    tier = RateTier(2, backlog(items=100))
    tier.run(10, at(0))
    tier.die(0)
    tier.run(10, at(1))
    assert sum(host.backlogs.items for host in tier.hosts.values()) <= 5
    tier.forget(0)
    tier.run(1, at(1))
    assert tier.hosts[1].backlogs.items == 100


def test_host_that_may_not_use_the_remaining_backlog_says_so() -> None:
    tier = RateTier(2, backlog(items=100), items=60)
    error = tier.offer(0)
    assert isinstance(error, LimitExceeded)
    assert "has room for 100 items" in error.message
    assert error.retry_after_ms
    tier.run(2.5)
    assert tier.offer(0) is None


# ------------------------------------------------------------------------- alone


def test_host_without_a_tier_has_no_allocations() -> None:
    now_s = 0.0
    quota = Quota({}, Backlogs({}), WholeLimits(lambda: now_s), lambda: now_s)
    settings = rate(60)
    quota.check_limits("default", settings, [new_item() for _ in range(60)])
    quota.charge("default", settings, 60)
    with pytest.raises(RateLimited, match=r"used up its 60 enqueues a minute; try again later"):
        quota.check_limits("default", settings, [new_item()])


def test_refused_item_passes_after_its_retry_time() -> None:
    tier = RateTier(3, rate())
    tier.run(5)
    for number in range(3):
        while tier.offer(number) is None:
            pass
    waits = [error.retry_after_ms or 0 for _, _, error in tier.refused]
    assert all(wait > 0 for wait in waits)
    tier.run(max(waits) / 1000 + 0.04)
    assert [tier.offer(number) for number in range(3)] == [None] * 3
    assert all(one.message == other.message for (_, _, one), (_, _, other) in pairwise(tier.refused))
