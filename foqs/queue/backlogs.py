"""The backlog of each namespace on a host: its items in the shards, and its items in flight.

Always true: only what is known for certain counts, so a backlog is too low while counts
lag. Knows nothing of limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from foqs.core.limits.in_flight import InFlight
from foqs.options.options import NamespaceOptions
from foqs.shard.shard import OwnedShard

_COUNTERS_MAX: Final = 10_000
"""With more namespaces than this, counters without items are dropped."""


class Backlogs:
    """The backlogs of the namespaces at one host: items and payload bytes, also of items in flight.

    Args:
        shards: the shards that this host serves, by number; changes over time.
    """

    def __init__(self, shards: Mapping[int, OwnedShard]) -> None:
        self._shards = shards
        self._in_flight: dict[str, InFlight] = {}
        """The counters by namespace, for namespaces with a limited backlog."""

    def usage(self, namespace: str) -> tuple[int, int]:
        """Return (items, payload bytes) of a namespace in the shards."""
        held = [shard.memory.usage.lower_bound(namespace) for shard in self._shards.values()]
        return sum(items for items, _ in held), sum(size for _, size in held)

    def backlog(self, namespace: str) -> tuple[int, int]:
        """Return (items, payload bytes) of a namespace in the shards and in flight."""
        items, size = self.usage(namespace)
        in_flight = self._in_flight.get(namespace)
        return (items, size) if in_flight is None else (items + in_flight.items, size + in_flight.bytes)

    def in_flight(self, namespace: str, settings: NamespaceOptions) -> InFlight | None:
        """Return the counter of a namespace's items in flight; None if its backlog is not limited."""
        if not settings.backlog_items_max and not settings.backlog_bytes_max:
            return None
        in_flight = self._in_flight.get(namespace)
        if in_flight is None:
            if len(self._in_flight) >= _COUNTERS_MAX:
                self._in_flight = {
                    name: counter for name, counter in self._in_flight.items() if counter.items or counter.bytes
                }
            in_flight = self._in_flight[namespace] = InFlight()
        return in_flight
