"""Clients of the host itself, for the pages of the console.

Always true: a client's calls are those of one principal, and the host checks them like
any others; there is at most one client for a principal, the address of its browser, and a
namespace; a client in use is not closed, and few others are kept. A client reaches its
host over a socket pair, so no port and no certificate is involved.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeAlias

from foqs.access.authenticator import AuthenticatedPrincipal
from foqs_client import Client
from foqs_client.host_connector import ProtocolFactory

Accept: TypeAlias = Callable[[AuthenticatedPrincipal | None, str], asyncio.BaseProtocol]
"""Returns the host's protocol of a connection whose peer is this principal, at a browser with this address.

The principal is None if the host does not authenticate; the address is empty if the call needs none.
"""
CLIENTS_MAX: Final = 64
"""The most clients that are kept open; further ones are closed as soon as no page uses them."""
IDLE_S: Final = 60.0
TIMEOUT_MS: Final = 10_000
_URL: Final = "foqs://localhost"


class _UsedClient:
    __slots__ = ("client", "used_at_s", "user_count")

    def __init__(self, client: Client) -> None:
        self.client = client
        self.user_count = 0
        self.used_at_s = 0.0


class LocalClients:
    """The clients of a host's own principals.

    Args:
        accept: see `Accept`.
    """

    def __init__(self, accept: Accept) -> None:
        self._accept = accept
        self._entries: dict[tuple[AuthenticatedPrincipal | None, str, str], _UsedClient] = {}
        self._closing: set[asyncio.Task[None]] = set()

    @contextmanager
    def use(self, authenticated: AuthenticatedPrincipal | None, namespace: str, address: str) -> Iterator[Client]:
        """Use a client whose calls are those of the principal, at this address, in the namespace. Do not close it."""
        loop, key = asyncio.get_running_loop(), (authenticated, namespace, address)
        entry = self._entries.pop(key, None) or _UsedClient(self._open(authenticated, namespace, address))
        self._entries[key] = entry  # the last used one is the last of all
        entry.user_count += 1
        try:
            yield entry.client
        finally:
            entry.user_count -= 1
            entry.used_at_s = loop.time()
            self._close_unused(entry.used_at_s)

    def _open(self, authenticated: AuthenticatedPrincipal | None, namespace: str, address: str) -> Client:
        async def connect(
            factory: ProtocolFactory, host: str, port: int
        ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
            loop = asyncio.get_running_loop()
            ours, theirs = socket.socketpair()
            await loop.create_connection(lambda: self._accept(authenticated, address), sock=theirs)
            return await loop.create_connection(factory, sock=ours)

        return Client(_URL, namespace=namespace, timeout_ms=TIMEOUT_MS, connect=connect)

    def _close_unused(self, now_s: float) -> None:
        for key, entry in list(self._entries.items()):
            if entry.user_count or (len(self._entries) <= CLIENTS_MAX and now_s - entry.used_at_s < IDLE_S):
                continue
            del self._entries[key]
            closing = asyncio.ensure_future(entry.client.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close all clients."""
        entries, self._entries = list(self._entries.values()), {}
        await asyncio.gather(*(entry.client.close() for entry in entries), *self._closing, return_exceptions=True)
