"""The framed server: all connections of a host, and the host's stop.

Holds the connections that are open and counts the calls in flight. Always true:
the limits of `WireLimits` hold at any moment; time is the loop's, order is that
of arrival, so that a simulation that drives `connection` by hand sees the same
run for the same input. Knows nothing of what a call does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias

from foqs.access.gate import Gate
from foqs.wire.complaints import Complaints
from foqs.wire.connection import SILENCE_BEFORE_CLOSE_S, Connection
from foqs.wire.frames import Room
from foqs.wire.limits import WireLimits
from foqs.wire.message import Bounds, Decoder, call_head, call_start
from foqs.wire.methods import Calls

Observe: TypeAlias = Callable[[str, str, float], None]
"""(method, OK or the error's code, seconds) of each call that was answered."""


class WireServer:
    """All connections of one host.

    `connection` is the protocol factory for `loop.create_server`, or for a
    simulation's transports.

    Args:
        observe: told (method, OK or the error's code, seconds) of every call answered.
        gate: who may call; anybody if None.
        seconds: the stop watch for that; the loop's clock if None.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        calls: Calls,
        limits: WireLimits,
        observe: Observe = lambda method, code, seconds: None,
        gate: Gate | None = None,
        seconds: Callable[[], float] | None = None,
    ) -> None:
        self.loop = loop
        self.observe = observe
        self.seconds = seconds or loop.time
        self.calls = calls
        self.gate = gate
        self.known = {call_start(name): (call_head(name), method) for name, method in calls.methods.items()}
        self.limits = limits
        self.decoder = Decoder(Bounds(limits.string_bytes_max, limits.container_items_max))
        self.room = Room(limits.in_flight_bytes_max)
        self.complaints = Complaints(loop.time)
        self.connections: dict[Connection, None] = {}
        self.surplus: dict[Connection, None] = {}
        """Open, and one too many each: they are told so, and closed."""
        self.connections_refused = 0
        """There were too many."""
        self.calls_in_flight = 0
        self.stopping = False
        self.quiet: asyncio.Future[None] | None = None
        self._gathering: list[Connection] = []
        """Those with replies of this turn of the loop."""

    def connection(self) -> Connection:
        """A protocol for one new connection."""
        return Connection(self)

    def gather(self, connection: Connection) -> None:
        """It has replies, which leave at the end of this turn of the loop, or with `send`."""
        if not self._gathering:
            self.loop.call_soon(self.send)
        self._gathering.append(connection)

    def send(self) -> None:
        """Writes the replies that were gathered."""
        gathering, self._gathering = self._gathering, []
        for connection in gathering:
            connection.write()

    def recheck(self) -> None:
        """Closes the connections whose token or certificate is not valid any more; their calls end as unfinished."""
        for connection in list(self.connections):
            if connection.visitor is not None and connection.visitor.is_outdated:
                connection.complain("closed: what it was known by is not valid any more")
                connection.end_calls()
                connection.close()

    async def stop(self, deadline: float) -> None:
        """Ends all connections; calls in flight have until `deadline`, on the loop's clock.

        The caller has stopped listening. Calls that arrive meanwhile are answered
        UNAVAILABLE. What is unfinished at the deadline is answered UNKNOWN_OUTCOME
        (reads: DEADLINE_EXCEEDED), and replies that a peer does not read within the
        grace after it are dropped.
        """
        self.stopping = True
        await self._until_quiet(deadline)
        for connection in list(self.connections):
            connection.end_calls()
        await self._until_quiet(self.loop.time() + self.limits.reply_grace_s)
        await self._until_silent(self.loop.time() + self.limits.reply_grace_s)
        for connection in list(self.surplus):
            connection.abort()
        for connection in list(self.connections):
            connection.close()
        await self._until_quiet(self.loop.time() + self.limits.reply_grace_s, connections_too=True)
        for connection in list(self.connections):
            connection.abort()

    async def _until_quiet(self, deadline: float, *, connections_too: bool = False) -> None:
        while self.calls_in_flight or (connections_too and self.connections):
            left = deadline - self.loop.time()
            if left <= 0:
                return
            quiet = self.quiet = self.loop.create_future()
            timer = self.loop.call_later(left, _settle, quiet)
            try:
                await quiet
            finally:
                timer.cancel()
                self.quiet = None

    async def _until_silent(self, deadline: float) -> None:
        """Answers on until the peers, told to go away, send no more: a call that crosses a close gets no answer."""
        begun = self.loop.time()
        while self.connections:
            heard = max(connection.heard_at for connection in self.connections)
            silent_at = min(max(begun, heard) + SILENCE_BEFORE_CLOSE_S, deadline)
            if silent_at <= self.loop.time():
                return
            await asyncio.sleep(silent_at - self.loop.time())

    def changed(self) -> None:
        """A call or a connection ended."""
        if self.quiet is not None:
            _settle(self.quiet)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
