"""Tests of the ownership table and the local coordinator."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from shardmgr.local_coordinator import FileEpochBook, LocalCoordinator
from shardmgr.ownership import TRANSITIONS, OwnershipEvent, OwnershipState, next_ownership_state
from shardmgr.port import CoordinatorFailed
from tests.support.builders import MemoryEpochBook


def test_an_ownership_can_always_come_back_to_serving() -> None:
    for state in OwnershipState:
        reached, frontier = {state}, [state]
        while frontier:
            here = frontier.pop()
            for (start, _), end in TRANSITIONS.items():
                if start is here and end not in reached:
                    reached.add(end)
                    frontier.append(end)
        assert OwnershipState.OWNED in reached
        assert OwnershipState.FREE in reached


def test_transition_that_is_not_in_the_table_is_refused() -> None:
    with pytest.raises(ValueError, match="free cannot be fenced"):
        next_ownership_state(OwnershipState.FREE, OwnershipEvent.FENCED)


def test_epochs_only_go_up_over_restarts(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "coordinator.json"

    async def issue(above: int) -> int:
        return await LocalCoordinator(FileEpochBook(path)).issue_epoch(3, above)

    assert [asyncio.run(issue(above)) for above in (0, 0, 10, 0)] == [1, 2, 11, 12]
    assert [entry.name for entry in path.parent.iterdir()] == ["coordinator.json"]


def test_epoch_is_issued_again_until_its_shard_was_served() -> None:
    async def story() -> None:
        book = MemoryEpochBook()
        coordinator = LocalCoordinator(book)
        assert [await coordinator.issue_epoch(3, 0) for _ in range(3)] == [1, 1, 1]
        coordinator.report_state(3, 0, OwnershipState.RECOVERING.value)
        assert await coordinator.issue_epoch(3, 0) == 1
        coordinator.report_state(3, 1, OwnershipState.OWNED.value)
        assert await coordinator.issue_epoch(3, 0) == 2
        assert await coordinator.issue_epoch(3, 7) == 8, "the owner row had a higher epoch"
        assert await coordinator.issue_epoch(4, 0) == 1
        assert await LocalCoordinator(book).issue_epoch(3, 0) == 9, "another process has another nonce"

    asyncio.run(story())


def test_epoch_that_could_not_be_recorded_is_issued_when_it_can() -> None:
    class FullDisk(MemoryEpochBook):
        failures = 3

        def save(self, epochs: dict[int, int]) -> None:
            self.failures -= 1
            if self.failures >= 0:
                raise CoordinatorFailed("cannot write the book: the disk is full")
            super().save(epochs)

    async def story() -> None:
        coordinator = LocalCoordinator(FullDisk())
        for _ in range(3):
            with pytest.raises(CoordinatorFailed):
                await coordinator.issue_epoch(3, 0)
        assert await coordinator.issue_epoch(3, 0) == 1

    asyncio.run(story())


def test_malformed_coordinator_file_is_named_with_its_remedy(tmp_path: Path) -> None:
    path = tmp_path / "coordinator.json"
    path.write_text("[]")
    with pytest.raises(CoordinatorFailed, match="move it away"):
        FileEpochBook(path).load()


def test_an_epoch_that_cannot_be_recorded_is_not_issued(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CoordinatorFailed, match="cannot be written"):
        FileEpochBook(tmp_path / "file" / "coordinator.json").save({1: 1})
