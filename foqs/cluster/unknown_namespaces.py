"""Reads the catalog again before a call fails because this host does not know its namespace.

Another host may have created the namespace a moment ago. Always true: a call is refused
only by a reading that began after the call came; all calls that wait share a reading, and
readings have pauses between them. Knows nothing of what calls mean.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from foqs.catalog.namespaces import Namespaces
from foqs.catalog.port import CatalogError
from foqs.queue.port import PendingCall
from foqs.rpc.call import Call, Handler, ServerMethod
from foqs_contract.errors import Unavailable

PAUSE_S: Final = 0.1
"""The least time between two readings: calls with wrong names must not cost the registry more."""
_RETRY_MS: Final = 1_000


class UnknownNamespaces:
    """Delays calls that name an unknown namespace.

    Args:
        refresh: reads the catalog and applies it. Raises `CatalogError`.
    """

    def __init__(self, namespaces: Namespaces, refresh: Callable[[], Awaitable[None]]) -> None:
        self._namespaces = namespaces
        self._refresh = refresh
        self._loop = asyncio.get_running_loop()
        self._next_reading: asyncio.Future[CatalogError | None] | None = None
        """The reading that has not begun, and for which calls wait."""
        self._last_s = -PAUSE_S
        """When the last reading began."""

    def layer(self, method: ServerMethod) -> Handler:
        """See `Layer`."""
        if method.row.requirement.namespace_field.partition(".")[0] not in method.request_fields:
            return method.handle
        handler, namespace_of = method.handle, method.namespace_of

        def serve(call: Call) -> PendingCall | None:
            if not self._may_be_new(namespace_of(call.request)):
                return handler(call)
            return _DelayedCall(self.read_again, handler, call)

        return serve

    def _may_be_new(self, name: bytes | str | None) -> bool:
        """Return whether another host may have created the namespace after the last reading of this host."""
        if name is None:
            return False
        try:
            known = name.decode() if isinstance(name, bytes) else name
        except UnicodeDecodeError:
            return False
        document = self._namespaces.document
        return known not in document.namespaces and bool(document.version)

    async def read_again(self, deadline: float) -> None:
        """Wait for a reading of the catalog that has not begun yet. Raises `Unavailable`."""
        reading = self._next_reading
        if reading is None:
            reading = self._next_reading = asyncio.ensure_future(self._read())
        await asyncio.wait((reading,), timeout=max(0.0, deadline - self._loop.time()))
        if not reading.done():
            raise Unavailable("the namespaces were not read again in time; try again", retry_after_ms=_RETRY_MS)
        error = reading.result()
        if error is not None:
            raise Unavailable(f"the namespaces cannot be read: {error}; try again", retry_after_ms=_RETRY_MS) from error

    async def _read(self) -> CatalogError | None:
        """Read the catalog. Return the error, because all calls that wait for it may have ended meanwhile."""
        await asyncio.sleep(max(0.0, self._last_s + PAUSE_S - self._loop.time()))
        self._next_reading = None
        self._last_s = self._loop.time()
        try:
            await self._refresh()
        except CatalogError as error:
            return error
        return None


class _DelayedCall:
    """A pending call that is served after a reading of the catalog."""

    def __init__(
        self,
        read_again: Callable[[float], Awaitable[None]],
        handler: Handler,
        call: Call,
    ) -> None:
        self._pending: PendingCall | None = None
        self._task = asyncio.ensure_future(self._serve(read_again, handler, call))

    async def _serve(
        self,
        read_again: Callable[[float], Awaitable[None]],
        handler: Handler,
        call: Call,
    ) -> None:
        try:
            await read_again(call.deadline)
            self._pending = handler(call)
        except Exception as error:
            call.fail(error)

    def abandon(self) -> None:
        self._task.cancel()
        if self._pending is not None:
            self._pending.abandon()
