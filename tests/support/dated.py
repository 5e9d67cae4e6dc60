"""A client that knows when it asked for what came.

Holds `DatedClient`. A client of several hosts takes polls over that an earlier
call has left, so what a call brings may have been asked for, and leased, before
that call was made. Judges nothing.
"""

from __future__ import annotations

import asyncio
from typing import Any

from foqs_client import Client, Delivery


class DatedClient(Client):
    """As `Client`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._asked_s: dict[tuple[str, int], float] = {}

    def asked_s(self, delivery: Delivery) -> float | None:
        """When a host was asked for it, by the loop's clock; known once."""
        return self._asked_s.pop((delivery.id, delivery.token), None)

    async def _dequeue_at(self, *arguments: Any) -> list[Delivery]:
        begun_s = asyncio.get_running_loop().time()
        deliveries = await super()._dequeue_at(*arguments)
        for each in deliveries:
            self._asked_s[each.id, each.token] = begun_s
        return deliveries
