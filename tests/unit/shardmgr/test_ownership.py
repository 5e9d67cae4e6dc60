"""Tests of the ownership table and the local coordinator."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from shardmgr.local_coordinator import FileEpochBook, LocalCoordinator
from shardmgr.ownership import TRANSITIONS, OwnershipEvent, OwnershipState, next_ownership_state
from shardmgr.port import CoordinatorFailed


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


def test_malformed_coordinator_file_is_named_with_its_remedy(tmp_path: Path) -> None:
    path = tmp_path / "coordinator.json"
    path.write_text("[]")
    with pytest.raises(CoordinatorFailed, match="move it away"):
        FileEpochBook(path).load()


def test_an_epoch_that_cannot_be_recorded_is_not_issued(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CoordinatorFailed, match="cannot write"):
        FileEpochBook(tmp_path / "file" / "coordinator.json").save({1: 1})
