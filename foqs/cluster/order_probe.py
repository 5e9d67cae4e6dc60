"""Asks the other hosts of the tier how many better items they had than a sampled delivery, and answers such calls.

Holds `OrderProbe`. Always true: a sample is asked for at once, of all peers at the same
time; a peer that does not answer in time counts as having nothing, and as a failure;
few samples are being asked for at a time. Knows nothing of which deliveries are sampled.
"""

from __future__ import annotations

import asyncio
from typing import Final

from foqs.cluster.peers import Peer, Peers
from foqs.core.items.item import TIME_MS_MAX, TopicName
from foqs.core.memory.order_samples import NOTHING, Displacement
from foqs.queue.host_state import HostState
from foqs.rpc import request_structs
from foqs.rpc.call import Call, unchanged
from foqs_contract.errors import FoqsError, InvalidArgument
from foqs_contract.idl import ttypes
from foqs_contract.thrift_method import ThriftMethod

REPLY_TIMEOUT_S: Final = 1.0
SAMPLES_IN_FLIGHT_MAX: Final = 20
"""The most samples that are asked for at a time. While peers are slow, further samples are not taken."""
_RANK: Final = ThriftMethod("rankItem")


class OrderProbe:
    """Measures the displacement of sampled deliveries over the whole tier.

    It is the `OrderSink` of a host with peers.
    """

    def __init__(self, state: HostState, peers: Peers) -> None:
        self.failure_count = 0
        """Requests to peers that failed or were not answered."""
        self._namespaces = state.namespaces
        self._ranking = state.ranking
        self._samples = state.order_samples
        self._stopwatch_s = state.stopwatch_s
        self._peers = peers
        self._tasks: set[asyncio.Task[None]] = set()

    def handle(self, call: Call) -> None:
        """Serve `rankItem`; see `Handler`."""
        request: ttypes.RankItemRequest = call.request
        namespace = request_structs.parse_name(request.namespace_name, "namespace_name")
        topic = request_structs.parse_name(request.topic, "topic")
        self._namespaces.settings_of(namespace)
        priority, after_ms = request.priority or 0, request.deliver_after_ms or 0
        if not 0 <= after_ms <= TIME_MS_MAX:
            raise InvalidArgument(f"this is not the time of an item; give 0 to {TIME_MS_MAX}", field="deliver_after_ms")
        here = self._ranking.passed_over((namespace, topic), priority, after_ms)
        call.reply(unchanged, ttypes.RankItemReply(here.items, here.by_priority, here.ready_age_ms))

    def on_sample(
        self, topic: TopicName, priority: int, deliver_after_ms: int, here: Displacement, deliveries: int
    ) -> None:
        """Ask the peers for their part of the displacement, then add the sample."""
        peers = list(self._peers.by_nonce.values())
        if not peers:
            self._samples.add(topic, here, deliveries, self._stopwatch_s())
        elif len(self._tasks) < SAMPLES_IN_FLIGHT_MAX:
            request = ttypes.RankItemRequest(*topic, priority, deliver_after_ms)
            task = asyncio.ensure_future(self._measure(peers, request, topic, here, deliveries))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _measure(
        self, peers: list[Peer], request: ttypes.RankItemRequest, topic: TopicName, here: Displacement, deliveries: int
    ) -> None:
        deadline = asyncio.get_running_loop().time() + REPLY_TIMEOUT_S
        for there in await asyncio.gather(*(self._ask(peer, request, deadline) for peer in peers)):
            here = here.plus(there)
        self._samples.add(topic, here, deliveries, self._stopwatch_s())

    async def _ask(self, peer: Peer, request: ttypes.RankItemRequest, deadline: float) -> Displacement:
        try:
            reply: ttypes.RankItemReply = await self._peers.call(peer, _RANK, request, deadline)
        except FoqsError:
            self.failure_count += 1
            return NOTHING
        return Displacement(max(0, reply.items or 0), max(0, reply.by_priority or 0), max(0, reply.ready_age_ms or 0))

    async def close(self) -> None:
        """Drop the samples that are being asked for."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
