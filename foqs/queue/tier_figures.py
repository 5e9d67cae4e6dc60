"""The figures of a host's whole tier, topic by topic, for the console and the page /scale.

Holds the port `TierFigures`, and `OwnFigures` of a host that is its whole tier.
`foqs.cluster.peer_figures` has those of a host with peers. Always true: nothing is asked
of another host for them. The states of databases are read from the registry. Knows nothing of pages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from foqs.core.items.item import State, TopicName
from foqs.core.memory.topic_rates import NO_RATES, Rates
from foqs.queue.host_state import HostState
from foqs.queue.port import ListTopics, QueueReads


@dataclass(slots=True, frozen=True)
class PeerState:
    """A peer, as this host sees it.

    Attributes:
        trouble: why the last call did not reach it; empty if it did.
    """

    name: str
    accepts_items: bool
    trouble: str


@dataclass(slots=True, frozen=True)
class DatabaseState:
    """A database that has a server in each region, as its entry says and this host sees it.

    Attributes:
        region, primary, term, state: of its entry.
        is_async: its primary waits for no replica.
        replicas: the servers that may acknowledge, by name: whether each is reached and proven, which it never is with
            `is_async`; None: it is not known.
        lags_ms: by replica, how far it is behind the inserts of this host's shards; empty if this host owns none.
        max_lag_ms: with `is_async`, the lag of the nearest replica at which no new items are accepted; None: unknown.
        lacks_if_lost: why hosts would not replace the primary by themselves if it were lost now, one sentence each; None: it
            is not known.
        blocked: why its writes wait, and what to do; empty: they do not, or it is not known.
    """

    name: str
    region: str
    primary: str
    term: int
    state: str
    is_async: bool
    replicas: Mapping[str, bool | None]
    lags_ms: Mapping[str, int]
    max_lag_ms: int | None
    lacks_if_lost: Sequence[str] | None = None
    blocked: str = ""


class TierFigures(Protocol):
    """The figures of a tier, as one of its hosts knows them."""

    @property
    def list_topics(self) -> ListTopics:
        """List the topics of the tier."""
        ...

    def is_partial(self) -> bool:
        """Return whether `list_topics` may lack topics, or items of them."""
        ...

    def misses_peers(self) -> bool:
        """Return whether items of other hosts may be missing."""
        ...

    def peer_items(self) -> Mapping[State, int]:
        """Return the items of all peers, by state."""
        ...

    def peer_rates(self) -> Rates:
        """Return the sums of the rates at the peers. Only their busiest topics count, because peers report no others."""
        ...

    def peers_oldest_ready_at_s(self) -> float | None:
        """Return the time of the oldest READY item of all peers, on the loop's clock; None if it is not known."""
        ...

    def rates(self, topic: TopicName) -> Rates:
        """Return the rates of a topic in the tier: averages of about a minute."""
        ...

    def busiest(self, topics_max: int) -> list[tuple[TopicName, Rates]]:
        """Return the busiest topics of the tier with their rates."""
        ...

    def peers(self) -> Sequence[PeerState]:
        """Return the other hosts of the tier."""
        ...

    async def databases(self) -> Sequence[DatabaseState]:
        """Return the databases with a server in each region, by name. Raises `Unavailable`."""
        ...


class OwnFigures:
    """The figures of a host that is its whole tier."""

    def __init__(self, state: HostState, reads: QueueReads) -> None:
        self.list_topics: ListTopics = reads.list_topics
        self._state = state
        self._reads = reads

    def is_partial(self) -> bool:
        return self._reads.is_partial()

    def misses_peers(self) -> bool:
        return False

    def peer_items(self) -> Mapping[State, int]:
        return {}

    def peer_rates(self) -> Rates:
        return NO_RATES

    def peers_oldest_ready_at_s(self) -> float | None:
        return None

    def rates(self, topic: TopicName) -> Rates:
        return self._state.topic_rates.rates(topic, self._state.stopwatch_s())

    def busiest(self, topics_max: int) -> list[tuple[TopicName, Rates]]:
        return self._state.topic_rates.busiest(topics_max, self._state.stopwatch_s())

    def peers(self) -> Sequence[PeerState]:
        return ()

    async def databases(self) -> Sequence[DatabaseState]:
        return ()
