"""Single calls of a client, with requests and results that its methods do not offer.

Always true: a call is made once, without a retry. Knows nothing of single methods.
"""

from __future__ import annotations

from typing import Any

from foqs_client import Client, Enqueued, Item, conversion
from foqs_contract.thrift_method import ThriftMethod


async def call_once(client: Client, method: str, request: Any, timeout_ms: int | None = None) -> Any:
    """Make a call, and return the reply's struct. Raises FoqsError."""
    return await client._call(ThriftMethod(method), request, timeout_ms)


async def enqueue_once(client: Client, *items: Item, timeout_ms: int = 10_000) -> list[Enqueued]:
    """Make one attempt at an enqueue, without automatic keys. Raises the FoqsError of the whole call."""
    return await client._send_items_to(None, conversion.items(items), timeout_ms)
