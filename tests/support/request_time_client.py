"""A client that knows when it requested a delivery.

Holds `RequestTimeClient`. A client of several hosts takes over polls that an earlier
call has left, so a delivery may have been requested and leased before the call
began; the client keeps such a delivery only for a short time. Does not judge.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from foqs_client import Client, Deliveries, Delivery

SURPLUS_AGE_S_MAX: Final = 0.5
"""Longer than a client keeps surplus items for the next call, even in a slow process."""


class RequestTimeClient(Client):
    """A client that knows when each delivery was requested."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._polls_s: dict[tuple[str, int], tuple[float, float]] = {}
        """By lease, when it was requested and when it arrived."""

    def pop_requested_s(self, delivery: Delivery, called_s: float) -> float | None:
        """Return when a delivery was requested if that was before `called_s`, by the loop's clock; else None. Forgets it."""
        asked_s, came_s = self._polls_s.pop((delivery.id, delivery.token), (called_s, called_s))
        return asked_s if asked_s < called_s <= came_s + SURPLUS_AGE_S_MAX else None

    async def _dequeue_from(self, *arguments: Any, **options: Any) -> Deliveries:
        loop = asyncio.get_running_loop()
        asked_s = loop.time()
        deliveries = await super()._dequeue_from(*arguments, **options)
        came_s = loop.time()
        for each in deliveries:
            self._polls_s[each.id, each.token] = asked_s, came_s
        return deliveries
