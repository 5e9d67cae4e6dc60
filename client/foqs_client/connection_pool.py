"""A client's connections.

Holds `Pool`. Always true: a call takes the connection with the fewest calls
under way; another is opened when all that are open are busy, and a lost one when
it is wanted again; what befalls one touches no other. Knows nothing of messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from foqs_client.credentials import Handshake
from foqs_client.errors import InvalidArgument
from foqs_client.host_connection import HostConnection
from foqs_client.host_connector import Connect, HostConnector

CONNECTIONS_MAX: Final = 64


class ConnectionPool:
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
        handshake: Handshake | None = None,
    ) -> None:
        if not 1 <= connections <= CONNECTIONS_MAX:
            raise InvalidArgument(f"{connections} is not a number from 1 to {CONNECTIONS_MAX}", field="connections")
        self._first, *self._others = [HostConnector(addresses, connect, handshake) for _ in range(connections)]
        self._closed = asyncio.Event()

    def set_addresses(self, addresses: Sequence[tuple[str, int]]) -> None:
        """See `HostConnector.set_addresses`."""
        for transport in (self._first, *self._others):
            transport.set_addresses(addresses)

    @property
    def ready_connection(self) -> HostConnection | None:
        """The link for the next call, when one may be sent on now."""
        best = self._first.ready_connection
        if self._others and (best is None or best.in_flight_count):
            best = self._least_loaded(best)
        return best

    @property
    def in_flight_count(self) -> int:
        """Calls that wait for their replies."""
        links = [transport.current_connection for transport in (self._first, *self._others)]
        return sum([link.in_flight_count for link in links if link is not None])

    async def wait_for_connection(self, deadline: float, *, retry_connect: bool = True) -> HostConnection:
        """A link that is ready; no await lies between the check and the return.

        Args:
            retry_connect: where it cannot be had, it is tried again until the deadline.

        Raises:
            NotSent: there was none by this moment of the loop's clock, or the client is closed.
        """
        return await min((self._first, *self._others), key=_load_order).wait_for_connection(
            deadline, retry_connect=retry_connect
        )

    async def sleep_unless_closed(self, seconds: float) -> bool:
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

    def _least_loaded(self, best: HostConnection | None) -> HostConnection | None:
        closed: HostConnector | None = None
        for transport in (self._first, *self._others):
            link = transport.ready_connection
            if link is None:
                if transport.current_connection is None:
                    closed = closed or transport
            elif best is None or link.in_flight_count < best.in_flight_count:
                best = link
        if closed is not None and (best is None or best.in_flight_count):
            closed.open_in_background()
        return best


def _load_order(connector: HostConnector) -> tuple[bool, int]:
    """Links that are open come first: another is opened when there is none."""
    link = connector.current_connection
    return (link is None, link.in_flight_count if link is not None else 0)
