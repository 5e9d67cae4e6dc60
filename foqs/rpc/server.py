"""The RPC server: all connections of a host, and their orderly end.

Holds the open connections and counts the calls in flight. Always true: the
limits of `RpcOptions` hold at any moment; the only clock is the loop's, and
calls are started in order of arrival, so a simulation that drives `connection`
by hand repeats a run exactly. Knows nothing of what a call does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias

from foqs.access.authenticator import Authenticator
from foqs.options.rpc_options import RpcOptions
from foqs.rpc.connection import SILENCE_BEFORE_CLOSE_S, Connection
from foqs.rpc.frames import ByteBudget
from foqs.rpc.messages import DecodeLimits, Decoder, call_head
from foqs.rpc.methods import RpcService
from foqs.rpc.peer_log import PeerLog
from foqs_contract.message_heads import CALL, head_prefix

OnCallReplied: TypeAlias = Callable[[str, str, float], None]
"""Called for each answered call with (method, OK or the error's code, seconds)."""


class RpcServer:
    """All connections of one host.

    `connection` is the protocol factory for `loop.create_server`, or for a
    simulation's transports.

    Args:
        on_call_replied: see `OnCallReplied`.
        authenticator: authenticates callers; None: anybody may call.
        stopwatch_s: measures the calls; None: the loop's clock.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        service: RpcService,
        limits: RpcOptions,
        on_call_replied: OnCallReplied = lambda method, code, seconds: None,
        authenticator: Authenticator | None = None,
        stopwatch_s: Callable[[], float] | None = None,
    ) -> None:
        self.loop = loop
        self.on_call_replied = on_call_replied
        self.stopwatch_s = stopwatch_s or loop.time
        self.service = service
        self.authenticator = authenticator
        self.methods_by_prefix = {
            head_prefix(CALL, name): (call_head(name), method) for name, method in service.methods.items()
        }
        self.limits = limits
        # Read for each call: a read from the options themselves takes longer than from here.
        self.calls_in_flight_max = limits.calls_in_flight_max
        self.calls_in_flight_per_connection_max = limits.calls_in_flight_per_connection_max
        self.write_buffer_bytes_max = limits.write_buffer_bytes_max
        self.stall_timeout_s = limits.stall_timeout_ms / 1000
        self.idle_timeout_s = limits.idle_timeout_ms / 1000
        self.reply_grace_s = limits.reply_grace_ms / 1000
        self.decoder = Decoder(DecodeLimits(limits.string_bytes_max, limits.container_items_max))
        self.byte_budget = ByteBudget(limits.in_flight_bytes_max)
        self.peer_log = PeerLog(loop.time)
        self.connections: dict[Connection, None] = {}
        self.surplus_connections: dict[Connection, None] = {}
        """Open connections above `connections_max`: their calls are refused, then they are closed."""
        self.refused_connection_count = 0
        """Connections refused because there were too many."""
        self.calls_in_flight = 0
        self.is_stopping = False
        self.idle_waiter: asyncio.Future[None] | None = None
        self._pending_writes: list[Connection] = []
        """Connections with replies of this turn of the loop."""

    def connection(self) -> Connection:
        """Return a protocol for one new connection."""
        return Connection(self)

    def schedule_write(self, connection: Connection) -> None:
        """Write the connection's replies at the end of this turn of the loop, or with `write_replies` before that."""
        if not self._pending_writes:
            self.loop.call_soon(self.write_replies)
        self._pending_writes.append(connection)

    def write_replies(self) -> None:
        """Write the replies of this turn of the loop."""
        connections, self._pending_writes = self._pending_writes, []
        for connection in connections:
            connection.write_replies()

    def close_revoked(self) -> None:
        """Close the connections whose token or certificate is no longer valid; their calls end as unfinished."""
        for connection in list(self.connections):
            if connection.session is not None and connection.session.is_revoked:
                connection.log_warning("closed: its token or certificate is no longer valid")
                connection.end_calls()
                connection.close()

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

    def on_call_or_connection_ended(self) -> None:
        if self.idle_waiter is not None:
            _set_done(self.idle_waiter)


def _set_done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
