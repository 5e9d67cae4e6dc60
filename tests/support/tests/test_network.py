"""The in-memory network: order, flow control and faults, as protocols see them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from tests.support.network import Network, NetworkTransport
from tests.support.virtual_time import VirtualLoop, run_virtual


class RecordingProtocol(asyncio.Protocol):
    """Records its events."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.data = bytearray()
        self.chunks = 0
        self.events: list[str] = []
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.made = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.made.set()

    def data_received(self, data: bytes) -> None:
        assert data
        self.data += data
        self.chunks += 1

    def eof_received(self) -> bool | None:
        self.events.append("eof")
        return None

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(exc)


class Pair:
    """Two ends that know each other."""

    def __init__(self, network: Network, client: RecordingProtocol, server: RecordingProtocol) -> None:
        self.network = network
        self.client = client
        self.server = server

    @property
    def client_end(self) -> NetworkTransport:
        assert isinstance(self.client.transport, NetworkTransport)
        return self.client.transport

    @property
    def server_end(self) -> NetworkTransport:
        assert isinstance(self.server.transport, NetworkTransport)
        return self.server.transport


async def connected(network: Network) -> Pair:
    servers: list[RecordingProtocol] = []

    def factory() -> RecordingProtocol:
        servers.append(RecordingProtocol())
        return servers[-1]

    await network.listen("host", 7411, factory)
    client = (await network.connect(RecordingProtocol, "host", 7411))[1]
    assert isinstance(client, RecordingProtocol)
    await servers[0].made.wait()
    return Pair(network, client, servers[0])


def on_network(test: Callable[[Network], Awaitable[None]], seeds: int = 40) -> None:
    """Runs a test on networks that behave differently."""
    for seed in range(seeds):

        async def program(seed: int = seed) -> None:
            loop = asyncio.get_running_loop()
            await test(Network(loop, random.Random(seed)))

        run_virtual(program, until_s=3600)


async def settle() -> None:
    await asyncio.sleep(60)


def test_bytes_arrive_once_and_in_order_both_ways() -> None:
    async def test(network: Network) -> None:
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

    on_network(test)


def test_writes_arrive_split_and_joined() -> None:
    counts = set()

    async def test(network: Network) -> None:
        pair = await connected(network)
        for _ in range(3):
            pair.client_end.write(b"abcdef")
            await asyncio.sleep(0.001)
        await settle()
        counts.add(pair.server.chunks)

    on_network(test)
    assert min(counts) < 3 < max(counts)


def test_every_arrival_takes_its_latency() -> None:
    async def test(network: Network) -> None:
        pair = await connected(network)
        pair.client_end.write(b"x")
        before = network.loop.time()
        await asyncio.sleep(0.00009)
        assert not pair.server.data
        await asyncio.sleep(0.003)
        assert pair.server.data == b"x"
        assert network.loop.time() - before < 0.004

    on_network(test)


def test_connecting_without_a_listener_is_refused() -> None:
    async def test(network: Network) -> None:
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

    on_network(test)


def test_closing_delivers_everything_and_ends_both_sides_cleanly() -> None:
    async def test(network: Network) -> None:
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

    on_network(test)


def test_both_sides_closing_with_data_under_way_still_end() -> None:
    async def test(network: Network) -> None:
        pair = await connected(network)
        pair.client_end.write(b"a" * 500)
        pair.server_end.write(b"b" * 500)
        pair.client_end.pause_reading()
        pair.client_end.close()
        pair.server_end.close()
        await pair.client.lost
        await pair.server.lost
        assert not pair.client.data

    on_network(test)


def test_half_closing_keeps_the_other_direction() -> None:
    class Patient(RecordingProtocol):
        def eof_received(self) -> bool | None:
            assert self.transport is not None
            self.transport.write(b"the answer")
            self.transport.close()
            return True

    async def test(network: Network) -> None:
        await network.listen("host", 1, Patient)
        transport, client = await network.connect(RecordingProtocol, "host", 1)
        assert isinstance(client, RecordingProtocol)
        transport.write(b"question")
        transport.write_eof()
        assert await client.lost is None
        assert client.data == b"the answer"

    on_network(test)


def test_writing_pauses_above_the_high_water_mark_and_resumes_below_the_low() -> None:
    async def test(network: Network) -> None:
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

    on_network(test)


def test_aborting_resets_the_other_end() -> None:
    async def test(network: Network) -> None:
        pair = await connected(network)
        pair.client_end.write(b"x" * 10)
        pair.client_end.abort()
        assert await pair.client.lost is None
        assert isinstance(await pair.server.lost, ConnectionResetError)
        assert network.connections() == []

    on_network(test)


def test_a_broken_connection_resets_both_ends_and_may_lose_data_in_flight() -> None:
    arrived = set()

    async def test(network: Network) -> None:
        pair = await connected(network)
        for _ in range(5):
            pair.client_end.write(b"12")
            pair.server_end.write(b"34")
        network.cut(network.connections()[0])
        assert isinstance(await pair.client.lost, ConnectionResetError)
        assert isinstance(await pair.server.lost, ConnectionResetError)
        assert b"1212121212".startswith(pair.server.data)
        assert b"3434343434".startswith(pair.client.data)
        arrived.add((len(pair.client.data) == 10, len(pair.server.data) == 10))
        assert network.connections() == []

    on_network(test, seeds=100)
    assert {each[0] for each in arrived} == {each[1] for each in arrived} == {True, False}


def test_a_partition_delays_all_data_until_it_is_healed() -> None:
    async def test(network: Network) -> None:
        pair = await connected(network)
        network.partition("host")
        pair.client_end.write(b"held")
        pair.server_end.write(b"back")
        connecting = asyncio.ensure_future(network.connect(RecordingProtocol, "host", 7411))
        beside = await network.connect(RecordingProtocol, "host", 7411, source="host")
        await settle()
        assert not pair.client.data
        assert not pair.server.data
        assert not connecting.done()
        network.heal("host")
        await connecting
        await settle()
        assert pair.server.data == b"held"
        assert pair.client.data == b"back"
        assert not beside[0].is_closing()
        assert not pair.client.lost.done()

    on_network(test)


def test_an_end_that_vanishes_behind_a_partition_is_noticed_after_it() -> None:
    async def test(network: Network) -> None:
        pair = await connected(network)
        network.partition("host")
        network.crash("host")
        await settle()
        assert not pair.client.lost.done()
        network.heal()
        await pair.client.lost

    on_network(test)


def test_a_crashed_host_sends_and_receives_nothing() -> None:
    ends = set()

    async def test(network: Network) -> None:
        pair = await connected(network)
        if network.rng.random() < 0.5:
            pair.client_end.write(b"unheard")
        network.crash("host")
        pair.server_end.write(b"from the grave")
        pair.server_end.close()
        ends.add(type(await pair.client.lost))
        await settle()
        assert not pair.client.data
        assert not pair.server.data
        assert pair.server.events == []
        assert not pair.server.lost.done()
        assert network.connections() == []
        with pytest.raises(ConnectionRefusedError):
            await network.connect(RecordingProtocol, "host", 7411)
        again = await connected(network)
        again.client_end.write(b"hello")
        await settle()
        assert again.server.data == b"hello"

    on_network(test)
    assert ends == {type(None), ConnectionResetError}


def test_writing_to_a_closed_end_resets_the_writer() -> None:
    class Stubborn(RecordingProtocol):
        def eof_received(self) -> bool | None:
            return True

    async def test(network: Network) -> None:
        servers: list[RecordingProtocol] = []

        def factory() -> RecordingProtocol:
            servers.append(RecordingProtocol())
            return servers[0]

        await network.listen("host", 1, factory)
        transport, client = await network.connect(Stubborn, "host", 1)
        assert isinstance(client, Stubborn)
        await servers[0].made.wait()
        assert servers[0].transport is not None
        servers[0].transport.close()
        await settle()
        assert not client.lost.done()
        transport.write(b"anybody there?")
        assert isinstance(await client.lost, ConnectionResetError)

    on_network(test)


def test_a_protocol_that_fails_loses_its_connection_and_fails_the_run() -> None:
    class Fragile(RecordingProtocol):
        def data_received(self, data: bytes) -> None:
            raise ValueError("I cannot read this")

    async def program() -> None:
        loop = asyncio.get_running_loop()
        network = Network(loop, random.Random(1))
        await network.listen("host", 1, Fragile)
        transport, client = await network.connect(RecordingProtocol, "host", 1)
        assert isinstance(client, RecordingProtocol)
        transport.write(b"x")
        assert isinstance(await client.lost, ConnectionResetError)

    with pytest.raises(ExceptionGroup) as caught:
        run_virtual(program)
    assert caught.group_contains(ValueError, match="cannot read")


def test_streams_work_over_it() -> None:
    async def test(network: Network) -> None:
        loop = network.loop

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

    on_network(test)


def test_a_buffered_protocol_gets_its_bytes() -> None:
    class Buffered(asyncio.BufferedProtocol):
        def __init__(self) -> None:
            self.room = bytearray(3)
            self.data = bytearray()

        def get_buffer(self, sizehint: int) -> memoryview:
            return memoryview(self.room)

        def buffer_updated(self, nbytes: int) -> None:
            self.data += self.room[:nbytes]

    async def test(network: Network) -> None:
        server = Buffered()
        await network.listen("host", 1, lambda: server)
        transport, _ = await network.connect(RecordingProtocol, "host", 1)
        transport.write(b"0123456789")
        await settle()
        assert server.data == b"0123456789"

    on_network(test)


def test_killing_a_process_silences_its_protocols() -> None:
    async def program() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        network = Network(loop, random.Random(1))
        process = loop.process("host")
        servers: list[RecordingProtocol] = []

        def factory() -> RecordingProtocol:
            servers.append(RecordingProtocol())
            return servers[-1]

        await process.spawn(network.listen("host", 1, factory))
        transport, client = await network.connect(RecordingProtocol, "host", 1)
        assert isinstance(client, RecordingProtocol)
        transport.write(b"one")
        await settle()
        transport.write(b"two")
        network.crash("host")
        process.kill()
        await client.lost
        assert servers[0].data == b"one"

    run_virtual(program)


def test_the_same_seed_gives_the_same_arrivals() -> None:
    def run(seed: int) -> list[str]:
        async def program() -> list[str]:
            log: list[str] = []

            class Noting(RecordingProtocol):
                def data_received(self, data: bytes) -> None:
                    log.append(f"{asyncio.get_running_loop().time():.9f} {data!r}")

            network = Network(asyncio.get_running_loop(), random.Random(seed))
            await network.listen("host", 1, Noting)
            transport, _ = await network.connect(RecordingProtocol, "host", 1)
            for n in range(20):
                transport.write(b"%d" % n)
            await settle()
            return log

        return run_virtual(program)

    assert run(7) == run(7)
    assert run(7) != run(8)
