"""A client's connections.

Holds `Pool`. Always true: a call takes the connection with the fewest calls
under way; another is opened when all that are open are busy, and a lost one when
it is wanted again; what befalls one touches no other. Knows nothing of messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from foqs_client.credentials import Greet
from foqs_client.errors import InvalidArgument
from foqs_client.link import Link
from foqs_client.transport import Connect, Transport

CONNECTIONS_MAX: Final = 64


class Pool:
    """Links to a host.

    Args:
        addresses: see `Transport`.
        connections: how many links at most.
        connect, greet: see `Transport`.

    Raises:
        InvalidArgument: no connection, or too many.
    """

    def __init__(
        self,
        addresses: Sequence[tuple[str, int]],
        connections: int,
        connect: Connect | None = None,
        greet: Greet | None = None,
    ) -> None:
        if not 1 <= connections <= CONNECTIONS_MAX:
            raise InvalidArgument(f"{connections} is not a number from 1 to {CONNECTIONS_MAX}", field="connections")
        self._first, *self._others = [Transport(addresses, connect, greet) for _ in range(connections)]
        self._closed = asyncio.Event()

    def know(self, addresses: Sequence[tuple[str, int]]) -> None:
        """See `Transport.know`."""
        for transport in (self._first, *self._others):
            transport.know(addresses)

    @property
    def ready_link(self) -> Link | None:
        """The link for the next call, when one may be sent on now."""
        best = self._first.ready_link
        if self._others and (best is None or best.in_flight):
            best = self._idlest(best)
        return best

    @property
    def in_flight(self) -> int:
        """Calls that wait for their replies."""
        links = [transport.link_now for transport in (self._first, *self._others)]
        return sum([link.in_flight for link in links if link is not None])

    async def link(self, deadline: float, *, patient: bool = True) -> Link:
        """A link that is ready; no await lies between the check and the return.

        Args:
            patient: where it cannot be had, it is tried again until the deadline.

        Raises:
            NotSent: there was none by this moment of the loop's clock, or the client is closed.
        """
        return await min((self._first, *self._others), key=_load).link(deadline, patient=patient)

    async def pause(self, seconds: float) -> bool:
        """Waits; False, at once, when the client is closed."""
        try:
            async with asyncio.timeout(seconds):
                await self._closed.wait()
        except TimeoutError:
            return True
        return False

    async def close(self) -> None:
        """Closes all links; calls that wait end as `NoReply`."""
        self._closed.set()
        for transport in (self._first, *self._others):
            await transport.close()

    def _idlest(self, best: Link | None) -> Link | None:
        closed: Transport | None = None
        for transport in (self._first, *self._others):
            link = transport.ready_link
            if link is None:
                if transport.link_now is None:
                    closed = closed or transport
            elif best is None or link.in_flight < best.in_flight:
                best = link
        if closed is not None and (best is None or best.in_flight):
            closed.open_soon()
        return best


def _load(transport: Transport) -> tuple[bool, int]:
    """Links that are open come first: another is opened when there is none."""
    link = transport.link_now
    return (link is None, link.in_flight if link is not None else 0)
