"""Opens and holds one connection to the first of some hosts that can be reached.

Always true: there is one connection at a time, opened when a call needs it. All calls
wait for the same attempt to open it. Knows nothing of messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

from foqs_client.credentials import Handshake, TlsFailed, UntrustedCertificate
from foqs_client.host_connection import HostConnection, NotSent
from foqs_contract.backoff import Backoff

ProtocolFactory: TypeAlias = Callable[[], asyncio.BaseProtocol]
Connect: TypeAlias = Callable[
    [ProtocolFactory, str, int], Awaitable[tuple[asyncio.BaseTransport, asyncio.BaseProtocol]]
]
"""Like `loop.create_connection`: (protocol factory, host, port)."""

CONNECT_TIMEOUT_S: Final = 3.0
BACKOFF_S_MIN: Final = 0.05
BACKOFF_S_MAX: Final = 1.0
_BACKOFF: Final = Backoff(BACKOFF_S_MIN, BACKOFF_S_MAX)
_QUESTION: Final = "is the host running there?"
"""The end of the reason if nothing answered. A program for people may add how to start a host."""


class HostConnector:
    """The connection to one of some hosts.

    Args:
        addresses: the addresses, tried one after the other from the one that worked last.
        connect: opens a connection; None: the running loop's `create_connection`.
        handshake: runs on a new connection before any call. If it raises an error other
            than OSError, the calls that wait for the connection end with it.
    """

    def __init__(
        self, addresses: Sequence[tuple[str, int]], connect: Connect | None = None, handshake: Handshake | None = None
    ) -> None:
        self._addresses = list(addresses)
        self._connect = connect
        self._handshake = handshake
        self._current = 0
        self._connection: HostConnection | None = None
        self._opening: asyncio.Task[HostConnection] | None = None
        self._retry_not_before_s = 0.0
        """The moment from which an attempt in the background may begin, a while after a failure."""
        self._last_failure = (0.0, "")
        """(until, why): calls without `retry_connect` fail at once with this reason until then."""
        self._closed = False

    def set_addresses(self, addresses: Sequence[tuple[str, int]]) -> None:
        """Replace the addresses. An open connection stays."""
        current = self._addresses[self._current]
        self._addresses = list(addresses)
        self._current = self._addresses.index(current) if current in self._addresses else 0

    @property
    def current_connection(self) -> HostConnection | None:
        """The connection, if it is open."""
        connection = self._connection
        return connection if connection is not None and connection.is_open else None

    @property
    def ready_connection(self) -> HostConnection | None:
        """The connection, if calls can be sent on it now."""
        connection = self._connection
        return connection if connection is not None and connection.is_ready else None

    async def wait_for_connection(self, deadline: float, *, retry_connect: bool = True) -> HostConnection:
        """Return a connection that is ready. No await lies between the check and the return.

        Args:
            retry_connect: retry after a failure until the deadline.

        Raises:
            NotSent: there was no connection by the deadline, no host's certificate is
                accepted, or the client is closed.
            FoqsError: the host refuses this client.
        """
        loop = asyncio.get_running_loop()
        failures = 0
        why = f"there was no time; {_QUESTION}"
        failed_until, failure = self._last_failure
        if not retry_connect and loop.time() < failed_until and self.current_connection is None:
            raise self._no_connection_error(failure)
        while loop.time() < deadline:
            connection = self._connection
            try:
                async with asyncio.timeout_at(deadline):
                    is_new = connection is None or not connection.is_open
                    if connection is None or not connection.is_open:
                        connection = await self._wait_opened()
                    await connection.wait_writable()
                if is_new and not connection.is_open:
                    raise self._closed_at_once_error(connection, loop.time())
            except TimeoutError:
                break
            except OSError as error:
                why = _reason(error)
                if not retry_connect:
                    break
                await asyncio.sleep(max(0.0, min(_BACKOFF.pause_s(failures), deadline - loop.time())))
                failures += 1
                continue
            if connection.is_ready:
                return connection
        raise self._no_connection_error(why)

    def _closed_at_once_error(self, connection: HostConnection, now_s: float) -> OSError:
        """Count a connection that was closed at once as a failed attempt at its address. Return the error of it.

        The next attempt starts at another address.
        """
        error = ConnectionResetError("the host closed the connection at once")
        if connection is self._connection:
            self._connection = None
            self._current = (self._current + 1) % len(self._addresses)
            self._record_failure(now_s, error)
        return error

    def _no_connection_error(self, reason: str) -> NotSent:
        hosts = ", ".join(f"{host}:{port}" for host, port in self._addresses)
        return NotSent(f"no connection to {hosts}: {reason}")

    def open_in_background(self) -> None:
        """Start to open the connection for later calls. After a failure it waits before another attempt."""
        loop = asyncio.get_running_loop()
        if (
            self.current_connection is None
            and self._opening is None
            and not self._closed
            and loop.time() >= self._retry_not_before_s
        ):
            self._start_opening(loop)

    async def close(self) -> None:
        """Close the connection. Calls in flight end as `NoReply`."""
        self._closed = True
        opening, self._opening = self._opening, None
        if opening is not None:
            opening.cancel()
            await asyncio.wait((opening,))  # and for `_on_opened`, for which `gather` does not wait since Python 3.12
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close_and_wait()

    async def _wait_opened(self) -> HostConnection:
        """Return the connection of one attempt at every address, which all waiting calls share.

        Raises OSError if no address answers, and NotSent if the client is closed or no host is trusted.
        """
        if self._closed:
            raise NotSent("the client is closed; make a new one")
        opening = self._opening or self._start_opening(asyncio.get_running_loop())
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if opening.cancelled() and not (task is not None and task.cancelling()):
                raise NotSent("the client is closed; make a new one") from None
            raise

    def _start_opening(self, loop: asyncio.AbstractEventLoop) -> asyncio.Task[HostConnection]:
        opening = self._opening = loop.create_task(self._open_any())
        opening.add_done_callback(self._on_opened)
        return opening

    def _on_opened(self, task: asyncio.Task[HostConnection]) -> None:
        self._opening = None
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            self._connection = task.result()
        else:
            self._record_failure(task.get_loop().time(), error)

    def _record_failure(self, now_s: float, error: BaseException) -> None:
        self._retry_not_before_s = now_s + BACKOFF_S_MAX
        if isinstance(error, OSError):
            self._last_failure = now_s + BACKOFF_S_MIN, _reason(error)

    async def _open_any(self) -> HostConnection:
        loop = asyncio.get_running_loop()
        connect = self._connect or loop.create_connection
        failures: list[OSError | TimeoutError] = []
        for _ in self._addresses:
            host, port = self._addresses[self._current]
            connection = HostConnection(loop)
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    await connect(lambda connection=connection: connection, host, port)  # type: ignore[misc]
                    if self._handshake is not None:
                        await self._handshake(connection, loop.time() + CONNECT_TIMEOUT_S)
            except (OSError, TimeoutError) as error:
                connection.abort()
                failures.append(error)
                self._current = (self._current + 1) % len(self._addresses)
            except BaseException:
                connection.abort()
                raise
            else:
                return connection
        why = "; ".join(dict.fromkeys(map(_reason, failures)))
        untrusted = [failure for failure in failures if isinstance(failure, UntrustedCertificate)]
        if untrusted and len(untrusted) == len(failures):
            raise NotSent(f"no host could be trusted: {why}; {untrusted[-1].remedy}")
        if any(isinstance(failure, TlsFailed) for failure in failures):
            raise OSError(why)  # it says what to do, and something listens there
        raise OSError(f"{why}; {_QUESTION}")


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError) and not str(error):
        return "it did not answer"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    return str(error) or type(error).__name__
