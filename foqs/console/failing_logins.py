"""Limits the wrong tokens of each peer that are not answered yet.

Always true: a peer has at most `FAILING_LOGINS_MAX` tokens refused in the time of one
delay, whether it waits for the answers or not; no peer is refused because of another.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

FAILING_LOGINS_MAX: Final = 10


class FailingLogins:
    """The wrong tokens of all peers. A peer is an address, or a network of IPv6.

    Args:
        delay_s: the time after which a wrong token is answered.
    """

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._counts: Counter[str] = Counter()

    def may_log_in(self, peer: str) -> bool:
        """Return whether a token of this peer may be compared."""
        return self._counts[peer] < FAILING_LOGINS_MAX

    async def delay(self, peer: str) -> None:
        """Count a wrong token, and return when it may be answered."""
        self._counts[peer] += 1
        # Not when this is cancelled: a browser that leaves does not guess more quickly.
        asyncio.get_running_loop().call_later(self._delay_s, self._forget, peer)
        await asyncio.sleep(self._delay_s)

    def _forget(self, peer: str) -> None:
        self._counts[peer] -= 1
        if not self._counts[peer]:
            del self._counts[peer]
