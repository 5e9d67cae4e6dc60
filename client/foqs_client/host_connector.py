"""Who to connect to, and the one connection to it.

Holds the addresses of some hosts and the link to one of them. Always true: there
is one link at a time, opened when a call needs it; while it is opened, all calls
wait for the same attempt. Knows nothing of messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

from foqs_client.credentials import Handshake, UntrustedCertificate
from foqs_client.host_connection import HostConnection, NotSent

ProtocolFactory: TypeAlias = Callable[[], asyncio.BaseProtocol]
Connect: TypeAlias = Callable[
    [ProtocolFactory, str, int], Awaitable[tuple[asyncio.BaseTransport, asyncio.BaseProtocol]]
]
"""As `loop.create_connection`: (protocol factory, host, port)."""

CONNECT_TIMEOUT_S: Final = 3.0
BACKOFF_S_MIN: Final = 0.05
BACKOFF_S_MAX: Final = 1.0


class HostConnector:
    """A link to the first of some hosts that can be reached.

    Args:
        addresses: tried in turn, beginning with the one that worked last.
        connect: opens a connection; the running loop's `create_connection` unless given.
        handshake: what is done with a new link before any call; what it raises that is
            no OSError ends the calls that wait for the link.
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
        """When an attempt that nobody waits for may begin: a while after a failure."""
        self._last_failure = (0.0, "")
        """Until when the last failure is the answer to who does not wait for another attempt, and why it failed."""
        self._closed = False

    def set_addresses(self, addresses: Sequence[tuple[str, int]]) -> None:
        """These from now on; a link that is open stays."""
        current = self._addresses[self._current]
        self._addresses = list(addresses)
        self._current = self._addresses.index(current) if current in self._addresses else 0

    @property
    def current_connection(self) -> HostConnection | None:
        """The link, while it is open."""
        link = self._connection
        return link if link is not None and link.is_open else None

    @property
    def ready_connection(self) -> HostConnection | None:
        """The link, when calls may be sent on it now."""
        link = self._connection
        return link if link is not None and link.is_ready else None

    async def wait_for_connection(self, deadline: float, *, retry_connect: bool = True) -> HostConnection:
        """A link that is ready; no await lies between the check and the return.

        Args:
            retry_connect: where it cannot be had, it is tried again until the deadline.

        Raises:
            NotSent: there was none by this moment of the loop's clock, no host's
                certificate is accepted, or the client is closed.
            FoqsError: the host does not want this client.
        """
        loop = asyncio.get_running_loop()
        pause_s = BACKOFF_S_MIN
        why = "there was no time"
        failed_until, failure = self._last_failure
        if not retry_connect and loop.time() < failed_until and self.current_connection is None:
            raise self._no_connection_error(failure)
        while loop.time() < deadline:
            link = self._connection
            try:
                async with asyncio.timeout_at(deadline):
                    is_new = link is None or not link.is_open
                    if link is None or not link.is_open:
                        link = await self._wait_opened()
                    await link.wait_writable()
                if is_new and not link.is_open:
                    raise self._closed_at_once_error(link, loop.time())
            except TimeoutError:
                break
            except OSError as error:
                why = _reason(error)
                if not retry_connect:
                    break
                await asyncio.sleep(max(0.0, min(pause_s, deadline - loop.time())))
                pause_s = min(2 * pause_s, BACKOFF_S_MAX)
                continue
            if link.is_ready:
                return link
        raise self._no_connection_error(why)

    def _closed_at_once_error(self, connection: HostConnection, now_s: float) -> OSError:
        """A link was opened and closed at once, which is as good as a refusal; another address is tried first."""
        error = ConnectionResetError("the host closed the connection at once")
        if connection is self._connection:
            self._connection = None
            self._current = (self._current + 1) % len(self._addresses)
            self._record_failure(now_s, error)
        return error

    def _no_connection_error(self, reason: str) -> NotSent:
        hosts = ", ".join(f"{host}:{port}" for host, port in self._addresses)
        return NotSent(f"no connection to {hosts}: {reason}; is the host running there?")

    def open_in_background(self) -> None:
        """Begins to open the link, for later calls; nobody waits, and a failure is tried again after a while."""
        loop = asyncio.get_running_loop()
        if (
            self.current_connection is None
            and self._opening is None
            and not self._closed
            and loop.time() >= self._retry_not_before_s
        ):
            self._start_opening(loop)

    async def close(self) -> None:
        """Closes the connection; calls that wait end as `NoReply`."""
        self._closed = True
        opening, self._opening = self._opening, None
        if opening is not None:
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
        link, self._connection = self._connection, None
        if link is not None:
            await link.close_and_wait()

    async def _wait_opened(self) -> HostConnection:
        """One attempt at every address, shared by all calls that wait for it."""
        if self._closed:
            raise NotSent("the client is closed")
        opening = self._opening or self._start_opening(asyncio.get_running_loop())
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if opening.cancelled() and not (task is not None and task.cancelling()):
                raise NotSent("the client is closed") from None
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
        """An attempt has just failed."""
        self._retry_not_before_s = now_s + BACKOFF_S_MAX
        if isinstance(error, OSError):
            self._last_failure = now_s + BACKOFF_S_MIN, _reason(error)

    async def _open_any(self) -> HostConnection:
        loop = asyncio.get_running_loop()
        connect = self._connect or loop.create_connection
        failures: list[OSError | TimeoutError] = []
        for _ in self._addresses:
            host, port = self._addresses[self._current]
            link = HostConnection(loop)
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    await connect(lambda link=link: link, host, port)  # type: ignore[misc]
                    if self._handshake is not None:
                        await self._handshake(link, loop.time() + CONNECT_TIMEOUT_S)
            except (OSError, TimeoutError) as error:
                link.abort()
                failures.append(error)
                self._current = (self._current + 1) % len(self._addresses)
            except BaseException:
                link.abort()
                raise
            else:
                return link
        why = "; ".join(dict.fromkeys(map(_reason, failures)))
        if all(isinstance(failure, UntrustedCertificate) for failure in failures):
            raise NotSent(f"no host could be trusted: {why}; name the CA that signed it, and the host as it says")
        raise OSError(why)


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError) and not str(error):
        return "it did not answer"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    return str(error) or type(error).__name__
