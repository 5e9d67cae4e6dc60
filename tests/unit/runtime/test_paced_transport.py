"""The transport in front of a connection's own: order, pieces, limits, and the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from foqs.runtime.paced_transport import PIECE_BYTES, PacedTransport
from foqs.runtime.peer_budget import PeerBudget


class Inner(asyncio.Transport):
    """Takes what its peer reads; pauses above `high` bytes, also for a moment within a write, as one that encrypts."""

    def __init__(self) -> None:
        super().__init__()
        self.paced: PacedTransport
        self.written = bytearray()
        self.buffered = 0
        self.most = 0
        self.high = 0
        self.is_paused = False
        self.end = ""
        self.passes_on = False

    def write(self, data: Any) -> None:
        assert len(data) <= PIECE_BYTES
        self.written += data
        self.buffered += len(data)
        self.most = max(self.most, self.buffered)
        self._pause_if_full()
        if self.passes_on:
            self.read(self.buffered)

    def read(self, byte_count: int) -> None:
        """The peer has read so many bytes."""
        self.buffered = max(0, self.buffered - byte_count)
        if self.is_paused and not self.buffered:
            self.is_paused = False
            self.paced.on_resume()

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def close(self) -> None:
        self.end = self.end or "closed"

    def abort(self) -> None:
        self.end = "aborted"

    def is_closing(self) -> bool:
        return bool(self.end)

    def _pause_if_full(self) -> None:
        if self.buffered > self.high and not self.is_paused:
            self.is_paused = True
            self.paced.on_pause()


class World:
    """A paced transport, and what it reports."""

    def __init__(self, bytes_max: int = 1 << 30, high_bytes: int = 0) -> None:
        self.inner = Inner()
        self.budget = PeerBudget(bytes_max)
        self.reports: list[str] = []

        def report(what: str) -> Callable[[], None]:
            return lambda: self.reports.append(what)

        self.paced = PacedTransport(
            self.inner, self.budget, "peer", high_bytes, report("blocked"), report("unblocked"), report("evicted")
        )
        self.inner.paced = self.paced


def test_bytes_leave_in_order_however_the_peer_reads() -> None:
    rng = Random(3)
    world = World()
    sent = bytearray()
    for _ in range(100):
        data = rng.randbytes(rng.choice((1, 1_000, PIECE_BYTES, PIECE_BYTES + 1, 400_000)))
        sent += data
        world.paced.write(data)
        world.inner.passes_on = rng.random() < 0.3
        world.inner.read(rng.randrange(300_000))
        assert world.budget.amount >= (world.paced.get_write_buffer_size() if world.inner.is_paused else 0)
    while world.inner.is_paused:
        world.inner.read(1 << 30)
    assert world.inner.written == sent
    assert world.inner.most <= PIECE_BYTES
    assert world.budget.amount == 0
    assert world.reports == ["blocked", "unblocked"] * (len(world.reports) // 2)


def test_a_transport_that_pauses_and_resumes_at_once_reports_nothing_that_stays() -> None:
    world = World()
    world.inner.passes_on = True
    world.paced.write(b"x" * 1_000_000)
    assert len(world.inner.written) == 1_000_000
    assert (world.reports, world.budget.amount) == ([], 0)


def test_a_reply_counts_as_a_whole_until_all_of_it_is_sent() -> None:
    world = World(high_bytes=500_000)
    world.paced.write(b"x" * 400_000)
    assert world.budget.amount == 400_000 + PIECE_BYTES
    assert world.reports == ["blocked"]
    world.inner.read(1 << 30)
    assert world.reports == ["blocked"]
    assert world.budget.amount == 400_000 + PIECE_BYTES
    for _ in range(3):
        world.inner.read(1 << 30)
    assert world.budget.amount == 0
    assert world.reports == ["blocked", "unblocked"]


def test_a_close_waits_until_all_is_sent_and_takes_no_more() -> None:
    world = World()
    world.paced.write(b"x" * 300_000)
    world.paced.close()
    world.paced.write(b"y")
    assert world.paced.is_closing()
    assert world.inner.end == ""
    for _ in range(3):
        world.inner.read(1 << 30)
    assert world.inner.end == "closed"
    assert world.inner.written == b"x" * 300_000


@pytest.mark.parametrize("end", [PacedTransport.abort, PacedTransport.on_lost])
def test_nothing_is_kept_after_the_end(end: Callable[[PacedTransport], None]) -> None:
    world = World()
    world.paced.write(b"x" * 300_000)
    end(world.paced)
    assert world.budget.amount == 0
    assert world.paced.get_write_buffer_size() == PIECE_BYTES


@pytest.mark.parametrize("end", [PacedTransport.abort, PacedTransport.on_lost])
def test_replies_that_were_not_begun_are_unsent_after_the_end(end: Callable[[PacedTransport], None]) -> None:
    world = World()
    unsent: list[int] = []
    for number, size in enumerate((1, 2 * PIECE_BYTES, 1, PIECE_BYTES)):
        world.paced.write(b"x" * size, lambda number=number: unsent.append(number))  # type: ignore[misc]
    world.inner.read(1)
    assert world.inner.written == b"x" * (PIECE_BYTES + 1), "a part of the second"
    assert unsent == []
    end(world.paced)
    assert unsent == [2, 3]
    end(world.paced)
    assert unsent == [2, 3]


def test_a_reply_to_a_connection_that_closes_is_unsent() -> None:
    world = World()
    unsent: list[int] = []
    world.paced.close()
    world.paced.write(b"x", lambda: unsent.append(1))
    assert (unsent, bytes(world.inner.written)) == ([1], b"")


def test_a_reply_beyond_the_budget_of_all_is_evicted() -> None:
    world = World(bytes_max=1_000_000)
    world.paced.write(b"x" * 1_000_000)
    assert "evicted" in world.reports
    assert world.budget.amount == 0
