"""Checks on the driver, before any task starts, that the hosts accept a write.

Holds `check_hosts`. Always true: it writes nothing. Knows nothing of rows.
"""

from __future__ import annotations

import asyncio
from typing import Final

from foqs_client.errors import FoqsError, Unreachable
from foqs_client.spark.item_columns import SinkError
from foqs_client.spark.options import SinkOptions
from foqs_client.spark.row_items import NAMESPACE_DEFAULT
from foqs_client.spark.sender import open_client
from foqs_client.types import Item, Routing

TIMEOUT_MS: Final = 10_000
KEY_SLOTS_MAX: Final = 16
"""The most key slots of a task. With more, calls would have fewer items, which costs more than even shards gain."""


def check_hosts(options: SinkOptions, has_namespaces: bool) -> int:
    """Return the number of key slots of each task: the number of shards with key slots.

    Args:
        options: the options of the write.
        has_namespaces: the rows have a column namespace. Only a namespace in the options is checked then.

    Raises:
        SinkError: no host can be reached, or a host refuses the principal or the namespace.
    """
    try:
        routing = asyncio.run(_read_routing(options, not has_namespaces or "namespace" in options.defaults))
    except Unreachable as error:
        raise SinkError(f"no host can be reached: {error.message}") from None
    except FoqsError as error:
        raise SinkError(f"the hosts refuse this write: {error}") from None
    shards = sum(1 for shard in routing.shards if shard.key_slots)
    return max(1, min(shards, KEY_SLOTS_MAX))


async def _read_routing(options: SinkOptions, checks_namespace: bool) -> Routing:
    timeout_ms = min(TIMEOUT_MS, options.timeout_ms)
    namespace = str(options.defaults.get("namespace", NAMESPACE_DEFAULT))
    async with open_client(options, namespace) as client:
        routing = await client.routing(timeout_ms=timeout_ms)
        if checks_namespace:
            # An item without a topic is always refused, but only after the namespace and the grant were checked.
            try:
                await client.enqueue([Item(topic="", idempotency_key="~")], timeout_ms=timeout_ms)
            except FoqsError as error:
                if not error.may_succeed_later:
                    raise
    return routing
