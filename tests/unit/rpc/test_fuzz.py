"""Invariant: for any bytes, the server does not fail and leaks no call, byte or connection.

Frames are random or mutated from good ones; the server is driven in memory.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foqs.rpc.server import RpcServer
from foqs_contract.idl import ttypes
from tests.support.builders import rpc_limits
from tests.support.example_counts import examples
from tests.support.fake_queue import FakeQueue
from tests.support.malformed_requests import mutate
from tests.support.requests import METHODS, Names, good
from tests.support.rpc_server import call, enqueue, frame, head, server_in_memory

MUTATIONS = 4_000
LIMITS = rpc_limits(frame_bytes_max=1 << 20)

GOOD = [
    call(name, request, 7, compact=compact)
    for compact in (False, True)
    for name, request in (
        *((method, good(method, Names())) for method in METHODS),
        ("enqueue", enqueue("topic", "other", payload=b"x" * 50, delay_ms=5, ttl_ms=9, delivery_policy=1)),
        ("dequeue", ttypes.DequeueRequest("default", [ttypes.TopicCount("topic", 3)], wait_ms=1)),
        ("nack", ttypes.NackRequest("default", [ttypes.Nack("3-8796093022209", 1, delay_ms=5, metadata=b"m")])),
        ("cancel", ttypes.CancelRequest("default", ["3-8796093022209", "3-8796093022210"])),
    )
]


class Sink(asyncio.Transport):
    """Takes replies and counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.frames = 0
        self.closing = False

    def write(self, data: Any) -> None:
        self.frames += 1

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing to set."""

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = True


async def feed(server: RpcServer, chunks: list[bytes]) -> Sink:
    """One connection from its first byte to its loss."""
    connection, sink = server.connection(), Sink()
    connection.connection_made(sink)
    for chunk in chunks:
        connection.data_received(chunk)
    for _ in range(4):
        await asyncio.sleep(0)
    connection.connection_lost(None)
    for _ in range(3):
        await asyncio.sleep(0)
    return sink


def drive(streams: list[list[bytes]]) -> list[Sink]:
    """Every stream on its own connection; nothing may be left afterwards."""

    async def main() -> list[Sink]:
        loop = asyncio.get_running_loop()
        failures: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _, context: failures.append(context))
        server = server_in_memory(FakeQueue(), LIMITS)
        sinks = []
        for chunks in streams:
            sinks.append(await feed(server, chunks))
            assert (server.calls_in_flight, server.byte_budget.reserved_bytes, len(server.connections)) == (0, 0, 0)
        assert failures == []
        return sinks

    return asyncio.run(main())


@settings(max_examples=examples(150))
@given(st.lists(st.lists(st.binary(max_size=200), max_size=4), min_size=1, max_size=8))
def test_random_bytes_leave_nothing_behind(streams: list[list[bytes]]) -> None:
    drive(streams)


@settings(max_examples=examples(150))
@given(st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=20), st.sampled_from(["enqueue", "ack", "x"]))
def test_random_bodies_behind_a_good_head_are_answered_or_end_the_connection(bodies: list[bytes], name: str) -> None:
    sinks = drive([[frame(head(name) + body)] for body in bodies])
    assert all(sink.frames == 1 and not sink.closing for sink in sinks)


def stream_part(rng: random.Random) -> bytes:
    """A good frame's message mutated, its length mended or not."""
    frame_ = rng.choice(GOOD)
    message = mutate(rng, frame_[4:])
    return frame(message) if rng.random() < 0.9 else frame_[:4] + message


def test_thousands_of_mutated_frames_fail_nothing_and_leak_nothing(caplog: pytest.LogCaptureFixture) -> None:
    rng = random.Random(20_240)
    streams = []
    for _ in range(MUTATIONS // 4):
        stream = b"".join(stream_part(rng) for _ in range(4))
        middle = rng.randrange(len(stream))
        streams.append([stream[:middle], stream[middle:]])
    with caplog.at_level(logging.ERROR):
        sinks = drive(streams)
    assert caplog.records == []
    assert sum(sink.frames for sink in sinks) > MUTATIONS // 10


def test_all_unmutated_frames_are_answered() -> None:
    assert [sink.frames for sink in drive([[frame_] for frame_ in GOOD])] == [1] * len(GOOD)
