"""Clients of the host itself: a client in use stays open, and others do not stay for long."""

from __future__ import annotations

import asyncio

import pytest

from foqs.console.local_clients import CLIENTS_MAX, LocalClients
from foqs_client.errors import Unreachable


class SilentHost(asyncio.Protocol):
    """The host's end of one connection. It answers nothing."""

    def __init__(self) -> None:
        self.is_called = asyncio.Event()
        self.is_lost = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.is_called.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost.set()


def test_client_in_use_stays_open_while_many_others_are_used() -> None:
    async def main() -> None:
        host = SilentHost()

        def use_others() -> None:
            for number in range(CLIENTS_MAX + 1):
                with clients.use(None, "n", str(number)):
                    pass

        clients = LocalClients(lambda authenticated, address: host)
        with clients.use(None, "n", "first") as client, clients.use(None, "n", "first") as same:
            assert client is same
            asked = asyncio.ensure_future(client.list_hosts())
            await host.is_called.wait()
            use_others()
            await asyncio.sleep(0)
            assert not asked.done()
        use_others()
        await host.is_lost.wait()
        with pytest.raises(Unreachable):
            await asked
        await clients.close()

    asyncio.run(main())
