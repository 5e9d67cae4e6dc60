"""The state that the parts of a host share: its shards, namespaces and waiting dequeues, and measurements of them.

Holds `HostState`. It is built first; the queue, the engine and the tier of the host get
it. Always true: its fields are the same objects as long as the host runs. Knows nothing
of calls and of other hosts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from foqs.catalog.namespaces import Namespaces
from foqs.catalog.slot_table import SlotTable
from foqs.core.memory.order_samples import OrderSamples
from foqs.core.memory.topic_rates import TopicRates
from foqs.options.options import NamespaceOptions
from foqs.queue.availability import Availability
from foqs.queue.backlogs import Backlogs
from foqs.queue.dequeue import Dequeue
from foqs.queue.ranking import Ranking
from foqs.queue.suspension import Suspension
from foqs.queue.waiters import Waiters
from foqs.shard.host_shards import HostShards, ShardStatus


class HostState:
    """The state that the parts of one host's queue share: its shards, namespaces, waiters and more.

    Args:
        namespace_options: the settings that apply to a namespace unless it has its own.
        tier: the name of the host's tier.
        stopwatch_s: returns monotonic seconds.
    """

    def __init__(self, namespace_options: NamespaceOptions, tier: str, stopwatch_s: Callable[[], float]) -> None:
        self.tier_name = tier
        self.stopwatch_s = stopwatch_s
        self.shards = HostShards()
        self.namespaces = Namespaces(namespace_options, tier)
        self.slots = SlotTable(self.namespaces)
        self.waiters: Waiters[Dequeue] = Waiters()
        self.suspension = Suspension()
        self.availability = Availability(self.shards, self.namespaces, self.waiters, self.suspension)
        self.backlogs = Backlogs(self.shards.served)
        self.ranking = Ranking(self.shards.served, self.namespaces, self.suspension)
        self.order_samples = OrderSamples()
        self.topic_rates = TopicRates()

    def load(self) -> float:
        """Return the load of the host: how many items wait to be written."""
        return float(sum(shard.queued_items for shard in self.shards.served.values()))

    def shard_statuses(self) -> list[ShardStatus]:
        """Return the status of each shard that this host should serve, by number."""
        statuses = []
        for number, status in sorted(self.shards.statuses.items()):
            shard = self.shards.served.get(number)
            if shard is not None:
                status = replace(
                    status,
                    queued_items=shard.queued_items,
                    reason=shard.unavailable_reason or shard.write_refusal or shard.dispute_reason or status.reason,
                )
            statuses.append(status)
        return statuses
