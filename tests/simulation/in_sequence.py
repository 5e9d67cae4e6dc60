"""A producer of a simulated run that waits for each acknowledgement, and a look at the order in which its items come.

Holds `InSequence`, which checks invariant 14: nobody else uses its topic, and at the end,
when nothing fails any more, one consumer takes all items. An item must come after those
that were acknowledged before it was sent, if its host owned their shards then, and one
host delivers both. With wild clocks each shard has a database of its own, so only items of
one shard are compared. Some items share a given time: one run of a host keeps their order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from foqs.core.items.item import parse_id, split_number
from foqs_client import FoqsError, Item
from tests.simulation.cluster import SimulatedCluster
from tests.support.recording_client import RecordingClient

SEQUENCE_TOPIC: Final = "in sequence"


@dataclass(slots=True, frozen=True)
class _Sent:
    """An acknowledged item.

    Attributes:
        host: the nonce of the host that accepted it.
        owners: the owner of each shard when it was sent.
        deliver_after_ms: the time that was given, which several items share; None for the time of its acceptance.
    """

    id: str
    shard: int
    host: str | None
    owners: dict[int, str | None]
    deliver_after_ms: int | None


class InSequence:
    """Sends items one after the other.

    Args:
        call: counts a call.
    """

    def __init__(
        self,
        cluster: SimulatedCluster,
        client: RecordingClient,
        rng: Random,
        call: Callable[[Awaitable[Any]], Awaitable[Any]],
    ) -> None:
        self._cluster = cluster
        self._client = client
        self._rng = rng
        self._call = call
        self._sent: list[_Sent] = []

    async def work(self, is_stopping: Callable[[], bool]) -> None:
        """Send one item after the other."""
        number = 0
        while not is_stopping():
            number += 1
            owners = {shard: self._cluster.owner(shard) for shard in self._cluster.shards}
            shared_ms = None
            if not self._cluster.wild and self._rng.random() < 0.5:
                shared_ms = int(self._cluster.clock.wall_ms()) // 4_000 * 4_000 + 4_500
            payload = f"in sequence/{number}".encode()
            item = Item(SEQUENCE_TOPIC, payload, lease_ms=30_000, deliver_after_ms=shared_ms)
            try:
                [result] = await self._call(self._client.enqueue([item], timeout_ms=1_000))
            except FoqsError:
                pass
            else:
                if result.id is not None:
                    shard, item_number = parse_id(result.id, "id")
                    host = self._cluster.host_of(shard, split_number(item_number)[0])
                    self._sent.append(_Sent(result.id, shard, host, owners, shared_ms))
            await asyncio.sleep(self._rng.choice((0.0, 0.0, self._rng.expovariate(12))))

    async def violations(self) -> list[str]:
        """Take all items, and return those that come before an earlier one."""
        places: dict[str, int] = {}
        deliverers = {shard: self._cluster.owner(shard) for shard in self._cluster.shards}
        # A client that waits polls several hosts at once, and takes over what an earlier poll brings.
        wait_ms = 300 if len(self._cluster.running()) == 1 else 0
        while deliveries := await self._client.dequeue({SEQUENCE_TOPIC: self._rng.choice((1, 3, 9))}, wait_ms=wait_ms):
            for delivery in deliveries:
                places[delivery.id] = len(places)
            await self._client.ack(deliveries)
        await self._client.client.close()
        found = [sent for sent in self._sent if sent.id in places]
        return [
            f"invariant 14: item {later.id} came before {earlier.id}, which was acknowledged before it was sent"
            for at, later in enumerate(found)
            for earlier in found[:at]
            if places[later.id] < places[earlier.id]
            and deliverers[later.shard] == deliverers[earlier.shard]
            and self._is_ordered(earlier, later)
        ]

    def _is_ordered(self, earlier: _Sent, later: _Sent) -> bool:
        if self._cluster.wild and earlier.shard != later.shard:
            return False
        if earlier.deliver_after_ms != later.deliver_after_ms:
            return False
        if later.deliver_after_ms is not None and earlier.host != later.host:
            return False
        return later.host is not None and later.owners[earlier.shard] == later.host
