"""The network in memory: order, flow control and ends, as protocols see them, with latencies and without."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextvars import ContextVar

import pytest

from foqs.testing.host_loop import HostLoop
from foqs.testing.memory_network import MemoryNetwork
from tests.support.connection_pair import RecordingProtocol, connected, settle
from tests.support.faulty_network import FaultyNetwork
from tests.support.virtual_time import run_virtual


def on_networks(test: Callable[[MemoryNetwork], Awaitable[None]], seeds: int = 40) -> None:
    """Run a test on the network without faults, and on networks with latencies and chunks of many seeds."""
    for seed in range(-1, seeds):

        async def program(seed: int = seed) -> None:
            await test(MemoryNetwork() if seed < 0 else FaultyNetwork(asyncio.get_running_loop(), random.Random(seed)))

        run_virtual(program, until_s=3600)


def test_bytes_arrive_once_and_in_order_both_ways() -> None:
    async def test(network: MemoryNetwork) -> None:
        pair = await connected(network)
        sent = bytearray()
        for n in range(50):
            piece = bytes([n]) * (1 + n * 7 % 40)
            sent += piece
            pair.client_end.write(piece)
            pair.server_end.writelines([piece[:1], memoryview(piece)[1:]])
            if n % 10 == 0:
                await asyncio.sleep(0.001)
        await settle()
        assert pair.server.data == sent
        assert pair.client.data == sent

    on_networks(test)


def test_connecting_without_a_listener_is_refused() -> None:
    async def test(network: MemoryNetwork) -> None:
        with pytest.raises(ConnectionRefusedError):
            await network.connect(RecordingProtocol, "host", 7411)
        listener = await network.listen("host", 0, RecordingProtocol)
        await network.connect(RecordingProtocol, "host", listener.port)
        with pytest.raises(OSError, match="taken"):
            await network.listen("host", listener.port, RecordingProtocol)
        listener.close()
        assert not listener.is_serving()
        with pytest.raises(ConnectionRefusedError):
            await network.connect(RecordingProtocol, "host", listener.port)

    on_networks(test)


def test_closing_delivers_everything_and_ends_both_sides_cleanly() -> None:
    async def test(network: MemoryNetwork) -> None:
        pair = await connected(network)
        pair.client_end.write(b"y" * 1000)
        pair.client_end.close()
        pair.client_end.write(b"too late")
        assert pair.client_end.is_closing()
        assert await pair.server.lost is None
        assert await pair.client.lost is None
        assert pair.server.data == b"y" * 1000
        assert pair.server.events == ["eof"]
        assert pair.client.events == []
        assert network.connections() == []

    on_networks(test)


def test_both_sides_closing_with_data_under_way_still_end() -> None:
    async def test(network: MemoryNetwork) -> None:
        pair = await connected(network)
        pair.client_end.write(b"a" * 500)
        pair.server_end.write(b"b" * 500)
        pair.client_end.pause_reading()
        pair.client_end.close()
        pair.server_end.close()
        await pair.client.lost
        await pair.server.lost
        assert not pair.client.data

    on_networks(test)


def test_half_closing_keeps_the_other_direction() -> None:
    class Patient(RecordingProtocol):
        def eof_received(self) -> bool | None:
            assert self.transport is not None
            self.transport.write(b"the answer")
            self.transport.close()
            return True

    async def test(network: MemoryNetwork) -> None:
        await network.listen("host", 1, Patient)
        transport, client = await network.connect(RecordingProtocol, "host", 1)
        assert isinstance(client, RecordingProtocol)
        transport.write(b"question")
        transport.write_eof()
        assert await client.lost is None
        assert client.data == b"the answer"

    on_networks(test)


def test_writing_pauses_above_the_high_water_mark_and_resumes_below_the_low() -> None:
    async def test(network: MemoryNetwork) -> None:
        pair = await connected(network)
        pair.client_end.set_write_buffer_limits(high=100, low=20)
        assert pair.client_end.get_write_buffer_limits() == (20, 100)
        pair.server_end.pause_reading()
        pair.client_end.write(b"z" * 100)
        assert pair.client.events == []
        pair.client_end.write(b"z")
        assert pair.client.events == ["pause"]
        await settle()
        assert pair.client_end.get_write_buffer_size() == 101
        assert not pair.server.data
        pair.server_end.resume_reading()
        await settle()
        assert pair.client.events == ["pause", "resume"]
        assert pair.server.data == b"z" * 101

    on_networks(test)


def test_writing_to_a_closed_end_resets_the_writer() -> None:
    class Stubborn(RecordingProtocol):
        def eof_received(self) -> bool | None:
            return True

    async def test(network: MemoryNetwork) -> None:
        accepted: asyncio.Future[RecordingProtocol] = asyncio.get_running_loop().create_future()

        def factory() -> RecordingProtocol:
            accepted.set_result(RecordingProtocol())
            return accepted.result()

        await network.listen("host", 1, factory)
        transport, client = await network.connect(Stubborn, "host", 1)
        assert isinstance(client, Stubborn)
        server = await accepted
        await server.made.wait()
        assert server.transport is not None
        server.transport.close()
        await settle()
        assert not client.lost.done()
        transport.write(b"anybody there?")
        assert isinstance(await client.lost, ConnectionResetError)

    on_networks(test)


def test_streams_work_over_it() -> None:
    async def test(network: MemoryNetwork) -> None:
        loop = asyncio.get_running_loop()

        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.readexactly(5))
            await writer.drain()
            writer.close()

        await network.listen("host", 1, lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader(loop=loop), echo))
        reader = asyncio.StreamReader(loop=loop)
        transport, _ = await network.connect(lambda: asyncio.StreamReaderProtocol(reader), "host", 1)
        transport.write(b"hel")
        transport.write(b"lo")
        assert await reader.read(-1) == b"hello"

    on_networks(test)


def test_aborting_without_faults_still_delivers_what_was_written() -> None:
    async def program() -> None:
        pair = await connected(MemoryNetwork())
        pair.client_end.write(b"x" * 10)
        pair.client_end.abort()
        assert await pair.client.lost is None
        assert await pair.server.lost is None
        assert pair.server.data == b"x" * 10
        assert pair.server.events == ["eof"]
        assert pair.network.connections() == []

    run_virtual(program)


def test_ends_in_two_loops_run_in_their_own_loop_and_context() -> None:
    seen: list[tuple[str, object, str]] = []
    where: ContextVar[str] = ContextVar("where")

    class Noting(RecordingProtocol):
        def data_received(self, data: bytes) -> None:
            seen.append((data.decode(), asyncio.get_running_loop(), where.get()))
            assert self.transport is not None
            if data == b"question":
                self.transport.write(b"answer")

    async def program() -> None:
        outer, network = asyncio.get_running_loop(), MemoryNetwork()
        inner = HostLoop(outer, network)

        async def listen() -> None:
            where.set("inside")
            await inner.create_server(Noting, "host", 7411)

        await inner.run_to_completion(listen())
        where.set("outside")
        transport, _ = await network.connect(Noting, "host", 7411)
        where.set("elsewhere")
        transport.write(b"question")
        await inner.run_until_idle()
        assert seen == [("question", inner, "inside"), ("answer", outer, "outside")]
        await inner.finish()

    run_virtual(program)


def test_a_protocol_that_fails_loses_its_connection_and_fails_the_run() -> None:
    class Fragile(RecordingProtocol):
        def data_received(self, data: bytes) -> None:
            raise ValueError("I cannot read this")

    async def program() -> None:
        network = MemoryNetwork()
        await network.listen("host", 1, Fragile)
        transport, client = await network.connect(RecordingProtocol, "host", 1)
        assert isinstance(client, RecordingProtocol)
        transport.write(b"x")
        assert isinstance(await client.lost, ConnectionResetError)

    with pytest.raises(ExceptionGroup) as caught:
        run_virtual(program)
    assert caught.group_contains(ValueError, match="cannot read")
