"""Tests how a client connects and reconnects to a host that closes connections at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from foqs_client.credentials import TlsFailed
from foqs_client.host_connection import NotSent
from foqs_client.host_connector import BACKOFF_S_MIN, HostConnector
from tests.support.virtual_time import run_virtual

CLOSING, OPEN = ("closing", 1), ("open", 2)


class TwoHosts:
    """Connects to two hosts. One of them closes every connection at once."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, float]] = []
        """(host, time) of each attempt."""

    async def connect(self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> Any:
        self.asked.append((host, asyncio.get_running_loop().time()))
        protocol, transport = factory(), asyncio.Transport()
        protocol.connection_made(transport)
        if host == CLOSING[0]:
            protocol.connection_lost(None)
        return transport, protocol


class Transport(asyncio.Transport):
    """A transport that closes at once."""

    def __init__(self, protocol: asyncio.BaseProtocol) -> None:
        super().__init__()
        self.protocol = protocol
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True
        self.protocol.connection_lost(None)


def run_story(story: Callable[[TwoHosts], Awaitable[None]]) -> None:
    async def main() -> None:
        await story(TwoHosts())

    run_virtual(main)


def test_host_that_closes_connections_at_once_is_retried_after_growing_pauses() -> None:
    async def story(hosts: TwoHosts) -> None:
        begun = asyncio.get_running_loop().time()
        with pytest.raises(NotSent, match="closed the connection at once"):
            await HostConnector([CLOSING], hosts.connect).wait_for_connection(begun + 31 * BACKOFF_S_MIN)
        after = [round((at - begun) / BACKOFF_S_MIN) for _, at in hosts.asked]
        assert after == [0, 1, 3, 7, 15]

    run_story(story)


def test_caller_without_retry_connects_once_to_a_host_that_closes_connections_at_once() -> None:
    async def story(hosts: TwoHosts) -> None:
        begun = asyncio.get_running_loop().time()
        with pytest.raises(NotSent, match="closed the connection at once"):
            await HostConnector([CLOSING], hosts.connect).wait_for_connection(begun + 10.0, retry_connect=False)
        assert hosts.asked == [(CLOSING[0], begun)]

    run_story(story)


def test_next_host_is_tried_after_one_closes_connections_at_once() -> None:
    async def story(hosts: TwoHosts) -> None:
        transport = HostConnector([CLOSING, OPEN], hosts.connect)
        deadline = asyncio.get_running_loop().time() + 10.0
        first, second = await asyncio.gather(
            transport.wait_for_connection(deadline), transport.wait_for_connection(deadline)
        )
        assert first is second
        assert first.is_ready
        assert [host for host, _ in hosts.asked] == [CLOSING[0], OPEN[0]]

    run_story(story)


def test_connection_that_opens_in_the_turn_of_the_close_is_closed() -> None:
    async def story(hosts: TwoHosts) -> None:
        gate = asyncio.Event()
        opened: list[Transport] = []

        async def connect(factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> Any:
            await gate.wait()
            protocol = factory()
            opened.append(Transport(protocol))
            protocol.connection_made(opened[0])
            return opened[0], protocol

        connector = HostConnector([OPEN], connect)
        connector.open_in_background()
        await asyncio.sleep(0)
        gate.set()  # the next turn opens the connection, and then closes all
        closing = asyncio.ensure_future(connector.close())
        await closing
        await asyncio.sleep(0)
        assert [transport.is_closed for transport in opened] == [True]
        assert connector.current_connection is None

    run_story(story)


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (ConnectionRefusedError(), "no connection to open:2: connection refused; is the host running there?"),
        (TlsFailed("it speaks no TLS; begin its address with foqs://"), None),
    ],
)
def test_message_asks_for_a_running_host_only_if_nothing_answers(failure: OSError, message: str | None) -> None:
    async def refuse(factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> Any:
        raise failure

    async def main() -> None:
        with pytest.raises(NotSent) as raised:
            await HostConnector([OPEN], refuse).wait_for_connection(1.0, retry_connect=False)
        assert str(raised.value) == (message or f"no connection to open:2: {failure}")

    run_virtual(main)
