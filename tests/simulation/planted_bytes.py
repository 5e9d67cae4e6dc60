"""Bugs of payloads that are not weighed, to show that the simulation with long payloads would find them; as `planted`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from foqs.core.flush.work import HandOut
from foqs.core.items.item import OrderKey, TopicName
from foqs.core.memory.reservations import LongestPayloads
from foqs.core.memory.row_cache import Prefetch
from foqs.shard.shard import Shard
from foqs.store.in_memory.memory_store import MemoryStore
from foqs.store.port import ANY_LENGTH
from tests.simulation.planted import Bug


def _read_whole() -> None:
    """A flush reads the payloads of its rows, however little was set aside for them."""
    original = MemoryStore.flush

    async def flush(
        self: MemoryStore, fence: Any, row_ids: Any, payload_limits: Mapping[int, int], key_names: Any, decide: Any
    ) -> None:
        await original(self, fence, row_ids, dict.fromkeys(payload_limits, ANY_LENGTH), key_names, decide)

    MemoryStore.flush = flush  # type: ignore[method-assign]


def heads_are_loaded() -> None:
    """A row that is remembered without its payload weighs nothing, as if it need not be read, and is read whole."""
    _read_whole()

    def hand_out(
        self: Shard,
        namespace: str,
        spans: Sequence[tuple[TopicName, Sequence[OrderKey]]],
        lease_ms: int | None,
        item_bytes_max: int,
        on_finished: Callable[[], None],
    ) -> HandOut:
        cache = self.memory.cache
        work = HandOut(namespace, spans, lease_ms, 0, on_finished)
        if None in map(cache.get, work.numbers):
            work.read_bytes = max(item_bytes_max, cache.longest_payloads.payload_bytes_max(namespace))
        self._intake.submit(work, is_internal=True)
        self._writer.wake()
        return work

    Shard.submit_lease = hand_out  # type: ignore[method-assign]


def limits_of_now() -> None:
    """A row that is not remembered is taken to be within its namespace's limit, and read whole."""
    _read_whole()
    LongestPayloads.payload_bytes_max = lambda self, namespace: 0  # type: ignore[method-assign]


def first_guess_trusted() -> None:
    """Rows are loaded ahead whole, however little was set aside for them."""
    Prefetch.payload_bytes_max = property(lambda self: ANY_LENGTH)  # type: ignore[assignment, method-assign]


BUGS: Final[Mapping[str, Bug]] = {
    "heads-are-loaded": Bug(heads_are_loaded, (18,)),
    "limits-of-now": Bug(limits_of_now, (18,)),
    "first-guess-trusted": Bug(first_guess_trusted, (18,)),
}
