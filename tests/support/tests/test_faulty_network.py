"""The network with faults: latency, chunks, partitions, crashes and resets, as protocols see them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from tests.support.connection_pair import RecordingProtocol, connected, settle
from tests.support.faulty_network import FaultyNetwork
from tests.support.virtual_time import SimulatedLoop, run_virtual


def on_network(test: Callable[[FaultyNetwork], Awaitable[None]], seeds: int = 40) -> None:
    """Runs a test on networks that behave differently."""
    for seed in range(seeds):

        async def program(seed: int = seed) -> None:
            loop = asyncio.get_running_loop()
            await test(FaultyNetwork(loop, random.Random(seed)))

        run_virtual(program, until_s=3600)


def test_writes_arrive_split_and_joined() -> None:
    counts = set()

    async def test(network: FaultyNetwork) -> None:
        pair = await connected(network)
        for _ in range(3):
            pair.client_end.write(b"abcdef")
            await asyncio.sleep(0.001)
        await settle()
        counts.add(pair.server.chunks)

    on_network(test)
    assert min(counts) < 3 < max(counts)


def test_every_arrival_takes_its_latency() -> None:
    async def test(network: FaultyNetwork) -> None:
        pair = await connected(network)
        pair.client_end.write(b"x")
        before = network.loop.time()
        await asyncio.sleep(0.00009)
        assert not pair.server.data
        await asyncio.sleep(0.003)
        assert pair.server.data == b"x"
        assert network.loop.time() - before < 0.004

    on_network(test)


def test_aborting_resets_the_other_end() -> None:
    async def test(network: FaultyNetwork) -> None:
        pair = await connected(network)
        pair.client_end.write(b"x" * 10)
        pair.client_end.abort()
        assert await pair.client.lost is None
        assert isinstance(await pair.server.lost, ConnectionResetError)
        assert network.connections() == []

    on_network(test)


def test_a_broken_connection_resets_both_ends_and_may_lose_data_in_flight() -> None:
    arrived = set()

    async def test(network: FaultyNetwork) -> None:
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
    async def test(network: FaultyNetwork) -> None:
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
    async def test(network: FaultyNetwork) -> None:
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

    async def test(network: FaultyNetwork) -> None:
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


def test_killing_a_process_silences_its_protocols() -> None:
    async def program() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        network = FaultyNetwork(loop, random.Random(1))
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

            network = FaultyNetwork(asyncio.get_running_loop(), random.Random(seed))
            await network.listen("host", 1, Noting)
            transport, _ = await network.connect(RecordingProtocol, "host", 1)
            for n in range(20):
                transport.write(b"%d" % n)
            await settle()
            return log

        return run_virtual(program)

    assert run(7) == run(7)
    assert run(7) != run(8)
