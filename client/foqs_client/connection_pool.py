"""The connections of a client to a host.

Holds `ConnectionPool`. Always true: a call uses the connection with the fewest calls
in flight. Another one is opened when all open ones are busy; a lost one is opened
again when it is needed. A failure of one affects no other. Knows nothing of messages.
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
    """Connections to a host.

    Args:
        addresses: see `HostConnector`.
        connections: the maximum number of connections.
        connect: see `HostConnector`.
        handshake: see `HostConnector`.

    Raises:
        InvalidArgument: `connections` is out of range.
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
        for connector in (self._first, *self._others):
            connector.set_addresses(addresses)

    @property
    def ready_connection(self) -> HostConnection | None:
        """The connection for the next call, if it can be sent now."""
        best = self._first.ready_connection
        if self._others and (best is None or best.in_flight_count):
            best = self._least_loaded(best)
        return best

    @property
    def is_connected(self) -> bool:
        """Whether one of the connections is open."""
        return any(connector.current_connection is not None for connector in (self._first, *self._others))

    @property
    def in_flight_count(self) -> int:
        """The number of calls that the host has not answered."""
        connections = [connector.current_connection for connector in (self._first, *self._others)]
        return sum([connection.in_flight_count for connection in connections if connection is not None])

    async def wait_for_connection(self, deadline: float, *, retry_connect: bool = True) -> HostConnection:
        """Return a connection that is ready. Arguments and errors are those of `HostConnector`."""
        return await min((self._first, *self._others), key=_load_order).wait_for_connection(
            deadline, retry_connect=retry_connect
        )

    async def sleep_unless_closed(self, seconds: float) -> bool:
        """Wait, and return True. Return False at once if the client is closed."""
        try:
            async with asyncio.timeout(seconds):
                await self._closed.wait()
        except TimeoutError:
            return True
        return False

    def hand_over_calls(self) -> None:
        """See `HostConnection.hand_over_calls`."""
        for connector in (self._first, *self._others):
            if connector.current_connection is not None:
                connector.current_connection.hand_over_calls()

    async def close(self) -> None:
        """Close all connections. Calls in flight end as `NoReply`."""
        self._closed.set()
        for connector in (self._first, *self._others):
            await connector.close()

    def _least_loaded(self, best: HostConnection | None) -> HostConnection | None:
        closed: HostConnector | None = None
        for connector in (self._first, *self._others):
            connection = connector.ready_connection
            if connection is None:
                if connector.current_connection is None:
                    closed = closed or connector
            elif best is None or connection.in_flight_count < best.in_flight_count:
                best = connection
        if closed is not None and (best is None or best.in_flight_count):
            closed.open_in_background()
        return best


def _load_order(connector: HostConnector) -> tuple[bool, int]:
    """Return a sort key: open connections first, with the fewest calls in flight. One is opened only if there is none."""
    connection = connector.current_connection
    return (connection is None, connection.in_flight_count if connection is not None else 0)
