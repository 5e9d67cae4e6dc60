"""The figures that the console shows of its host and the tier without a call: totals, rates, breakers, displacement.

Holds `HostFigures`. It reads memory and changes nothing. Always true: the figures of the
tier are those of this host's shards and the last report of each peer; a collection yields
between shards. Knows nothing of pages and permissions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from foqs.console.history import CountRates
from foqs.core.items.item import State, TopicName
from foqs.core.memory.order_samples import TopicOrder
from foqs.core.memory.topic_rates import Rates
from foqs.queue.engine import Engine
from foqs.queue.port import ListTopics
from foqs.queue.tier_figures import DatabaseState, PeerState, TierFigures

BUSY_TOPICS: Final = 10
"""The number of busiest topics whose history is kept before a page shows them."""
OLDEST_COST_FACTOR: Final = 100
"""The oldest item is searched again after this times the time that the last search took."""


@dataclass(slots=True, frozen=True)
class Totals:
    """All items of the tier.

    Attributes:
        counts_lag: there may be more items.
        oldest_ready_age_ms: None if there is no ready item.
        rates: items per second that became READY, and that were acked, in the last seconds.
        rates_are_partial: of the peers, only their busiest topics count.
    """

    ready: int
    leased: int
    deferred: int
    dead: int
    counts_lag: bool
    oldest_ready_age_ms: int | None
    rates: Rates
    rates_are_partial: bool


class HostFigures:
    """The figures of one host, and those of the tier as this host knows them.

    Args:
        tier: the figures of all hosts.
        not_ready_reasons: returns why the host is not ready, by shard or part.
        stopwatch_s: returns monotonic seconds.
        cpu_s: returns the processor time of this thread.
    """

    def __init__(
        self,
        engine: Engine,
        tier: TierFigures,
        not_ready_reasons: Callable[[], Mapping[str, str]],
        stopwatch_s: Callable[[], float],
        cpu_s: Callable[[], float],
    ) -> None:
        self.list_topics: ListTopics = tier.list_topics
        self._engine = engine
        self._tier = tier
        self.not_ready_reasons = not_ready_reasons
        self._stopwatch_s = stopwatch_s
        self._cpu_s = cpu_s
        self._count_rates = CountRates()
        self._oldest: tuple[float, float, int | None] | None = None
        """When the oldest item was searched, the time from which it is searched again, and its age then in ms."""

    async def totals(self) -> Totals:
        """Collect and return the totals of the tier. No two calls may run at once."""
        oldest_ms = await self._oldest_ready_age_ms()
        shards = list(self._engine.shards.values())
        counts = {state: sum(shard.counts.totals[state] for shard in shards) for state in State}
        is_lagging = any(shard.counts.is_lagging for shard in shards)
        topic_rates = self._engine.topic_rates
        rates = self._count_rates.rates(topic_rates.ready_count, topic_rates.acked_count, self._stopwatch_s())
        for state, items in self._tier.peer_items().items():
            counts[state] += items
        peer_rates = self._tier.peer_rates()
        rates = Rates(rates.ready + peer_rates.ready, rates.acked + peer_rates.acked)
        return Totals(
            max(0, counts[State.READY]),
            max(0, counts[State.LEASED]),
            max(0, counts[State.DEFERRED]),
            max(0, counts[State.DEAD]),
            is_lagging or self._tier.misses_peers() or len(shards) < len(self._engine.statuses),
            oldest_ms if counts[State.READY] > 0 else None,
            rates,
            bool(self._tier.peers()),
        )

    async def _oldest_ready_age_ms(self) -> int | None:
        """Return the age of the oldest ready item. With many topics it is searched less often, and grows meanwhile."""
        now_s = self._stopwatch_s()
        if self._oldest is not None and now_s < self._oldest[1]:
            searched_s, _, age_ms = self._oldest
            return None if age_ms is None else age_ms + round((now_s - searched_s) * 1_000)
        started_s = self._cpu_s()
        ages_ms = []
        for shard in list(self._engine.shards.values()):
            ages_ms.append(shard.oldest_ready_age_ms())
            await asyncio.sleep(0)
        ready_at_s = self._tier.peers_oldest_ready_at_s()
        if ready_at_s is not None:
            ages_ms.append(max(0, round((asyncio.get_running_loop().time() - ready_at_s) * 1_000)))
        age_ms = max((age_ms for age_ms in ages_ms if age_ms is not None), default=None)
        now_s = self._stopwatch_s()
        self._oldest = now_s, now_s + OLDEST_COST_FACTOR * (self._cpu_s() - started_s), age_ms
        return age_ms

    def topic_rates(self, topic: TopicName) -> Rates:
        """Return the rates of a topic in the tier: averages of about a minute."""
        return self._tier.rates(topic)

    def busiest_topics(self) -> list[tuple[TopicName, Rates]]:
        """Return the busiest topics of the tier with their rates: averages of about a minute."""
        return self._tier.busiest(BUSY_TOPICS)

    def order(self, topic: TopicName) -> TopicOrder | None:
        """Return the displacement of this host's sampled deliveries of a topic; None without samples."""
        return self._engine.queue.order_meter.samples.of_topic(topic, self._stopwatch_s())

    def is_paused(self, topic: TopicName) -> bool:
        """Return whether a topic, with items or without, is paused."""
        return topic in self._engine.namespaces.paused_topics

    def breakers(self) -> Mapping[int, str]:
        """Return the state of the circuit breaker of each shard of this host."""
        return {number: shard.breaker_state for number, shard in sorted(self._engine.shards.items())}

    def peers(self) -> list[PeerState]:
        """Return the other hosts of the tier, as this host sees them."""
        return list(self._tier.peers())

    async def databases(self) -> Sequence[DatabaseState]:
        """Return the databases with a server in each region. Raises `Unavailable`."""
        return await self._tier.databases()
