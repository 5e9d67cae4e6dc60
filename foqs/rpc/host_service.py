"""Builds the service of a host: the handlers of all its parts, and the layer of the tier around them.

Knows nothing of what the calls do.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from types import MappingProxyType

from foqs.queue.port import Queue
from foqs.routing.port import ClusterService
from foqs.rpc.call import Handler, Layer
from foqs.rpc.cluster_handlers import cluster_handlers
from foqs.rpc.connection_handlers import abandon_dequeues, authenticate
from foqs.rpc.methods import RpcService, contract_methods, unforwarded
from foqs.rpc.queue_handlers import QueueHandlers, TopicLists


def host_service(
    queue: Queue,
    cluster: ClusterService,
    rng: random.Random,
    extra_handlers: Mapping[str, Handler] = MappingProxyType({}),
    layer: Layer = unforwarded,
    topics: TopicLists | None = None,
) -> RpcService:
    """Return the service of a host.

    Args:
        cluster: the hosts and shards that calls ask about.
        rng: draws the jitter of backoffs.
        extra_handlers: handlers of other calls than those about items and topics, by name.
        layer: forwards to the other hosts of the tier.
        topics: the topics of the whole tier; None: those of the queue.
    """
    handlers = QueueHandlers(queue, queue.reads if topics is None else topics, rng)
    methods = contract_methods(
        {
            "authenticate": authenticate,
            "abandonDequeues": abandon_dequeues,
            **handlers.handlers,
            **cluster_handlers(cluster),
            **extra_handlers,
        },
        layer,
    )
    return RpcService(methods, handlers.timeout_s)
