"""The RPC server: it opens the connections of a host, and ends them in order.

Always true: the only clock is the loop's, and calls are started in order of arrival,
so a simulation that drives `connection` by hand repeats a run exactly. Knows nothing
of what a call does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from foqs.access.authenticator import AuthenticatedPrincipal
from foqs.rpc.client_connection import SILENCE_BEFORE_CLOSE_S, ClientConnection
from foqs.rpc.server_state import ServerState


class RpcServer(ServerState[ClientConnection]):
    """All connections of one host.

    `connection` is the protocol factory for `loop.create_server`, or for a
    simulation's transports.
    """

    def connection(
        self, authenticated: AuthenticatedPrincipal | None = None, part: str | None = None
    ) -> ClientConnection:
        """Return a protocol for one new connection.

        Args:
            authenticated: the principal, if the peer is a part of this host that has authenticated it.
            part: the name of that part of the host.
        """
        return ClientConnection(self, authenticated, part)

    def close_revoked(self) -> None:
        """Close the connections whose token or certificate is no longer valid; their calls end as unfinished."""
        for connection in list(self.connections):
            if connection.session is not None and connection.session.is_revoked:
                connection.log_warning("closed: its token or certificate is no longer valid")
                connection.end_calls()
                connection.close()

    def refuse_waits(self, changed: Collection[str]) -> None:
        """Fail dequeues that wait for items of these namespaces without a grant: it may have been taken away."""
        namespaces = frozenset(name.encode() for name in changed)
        for connection in list(self.connections) if namespaces else ():
            connection.refuse_waits(namespaces)

    async def stop(self, deadline: float) -> None:
        """End all connections; calls in flight have until `deadline`, on the loop's clock.

        The caller must have stopped listening. Calls that arrive meanwhile fail as
        UNAVAILABLE. Calls that are unfinished at the deadline fail as UNKNOWN_OUTCOME
        (reads: DEADLINE_EXCEEDED). Replies that a peer does not read within the grace
        period after it are dropped.
        """
        self.is_stopping = True
        await self._wait_until_idle(deadline)
        for connection in list(self.connections):
            connection.end_calls()
        await self._wait_until_idle(self.loop.time() + self.reply_grace_s)
        await self._wait_until_silent(self.loop.time() + self.reply_grace_s)
        for connection in list(self.surplus_connections):
            connection.abort()
        for connection in list(self.connections):
            connection.close()
        await self._wait_until_idle(self.loop.time() + self.reply_grace_s, with_connections=True)
        for connection in list(self.connections):
            connection.abort()

    async def _wait_until_idle(self, deadline: float, *, with_connections: bool = False) -> None:
        while self.calls_in_flight or (with_connections and self.connections):
            left_s = deadline - self.loop.time()
            if left_s <= 0:
                return
            idle = self.idle_waiter = self.loop.create_future()
            timer = self.loop.call_later(left_s, _set_done, idle)
            try:
                await idle
            finally:
                timer.cancel()
                self.idle_waiter = None

    async def _wait_until_silent(self, deadline: float) -> None:
        """Refuse calls until the peers send no more: a call that arrives while its connection is closed gets no reply."""
        started_at = self.loop.time()
        while self.connections:
            last_received_at = max(connection.last_received_at_s for connection in self.connections)
            silent_at = min(max(started_at, last_received_at) + SILENCE_BEFORE_CLOSE_S, deadline)
            if silent_at <= self.loop.time():
                return
            await asyncio.sleep(silent_at - self.loop.time())


def _set_done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
