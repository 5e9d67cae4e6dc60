"""Planted bugs of the limits on payload bytes in memory, for the simulation with long payloads; see `planted`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from foqs.core.flush.operation import Leases, OperationCaller
from foqs.core.items.item import OrderKey, TopicName
from foqs.core.memory.reservations import LongestPayloads
from foqs.core.memory.row_cache import Prefetch
from foqs.shard.shard import OwnedShard
from foqs.store.in_memory.memory_store import MemoryStore
from foqs.store.port import ANY_LENGTH
from tests.simulation.planted import Bug
from tests.simulation.planting import plant


def _read_all_payloads() -> None:
    """A flush reads the payloads of its rows even beyond its reservation."""
    original = MemoryStore.flush

    async def flush(
        self: MemoryStore, fence: Any, row_ids: Any, payload_limits: Mapping[int, int], key_names: Any, decide: Any
    ) -> None:
        await original(self, fence, row_ids, dict.fromkeys(payload_limits, ANY_LENGTH), key_names, decide)

    plant(MemoryStore, "flush", flush)


def cached_row_reserves_nothing() -> None:
    """A row that is cached without its payload reserves no bytes, but its payload is read."""
    _read_all_payloads()

    def submit_lease(
        self: OwnedShard,
        namespace: str,
        spans: Sequence[tuple[TopicName, Sequence[OrderKey]]],
        lease_ms: int | None,
        item_bytes_max: int,
        caller: OperationCaller,
        *,
        is_run: bool = False,
    ) -> Leases:
        cache = self.memory.cache
        operation = Leases(namespace, spans, lease_ms, 0, caller)
        operation.is_whole = is_run
        if None in map(cache.get, operation.numbers):
            operation.read_bytes = max(item_bytes_max, cache.longest_payloads.payload_bytes_max(namespace))
        self._writer.submit(operation, is_internal=True)
        return operation

    plant(OwnedShard, "submit_lease", submit_lease)


def older_longer_payloads_ignored() -> None:
    """A row that is not cached reserves the namespace's present limit, though its payload may be longer, and is read."""
    _read_all_payloads()
    plant(LongestPayloads, "payload_bytes_max", lambda self, namespace: 0)


def prefetch_beyond_reservation() -> None:
    """A prefetch reads payloads even beyond its reservation."""
    plant(Prefetch, "payload_bytes_max", property(lambda self: ANY_LENGTH))


BUGS: Final[Mapping[str, Bug]] = {
    "cached-row-reserves-nothing": Bug(cached_row_reserves_nothing, (18,), 20, first_seed=18),
    "older-longer-payloads-ignored": Bug(older_longer_payloads_ignored, (18,), 40, first_seed=30),
    "prefetch-beyond-reservation": Bug(prefetch_beyond_reservation, (18,)),
}
