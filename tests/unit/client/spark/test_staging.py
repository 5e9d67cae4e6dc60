"""Who may read the rows that a stream stages on a disk."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from foqs_client.spark.item_view_columns import STREAM_COLUMNS
from foqs_client.spark.staging import Staging, StagingOwner


@pytest.fixture(autouse=True, params=[0o022, 0o000, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def write_files(folder: Path) -> set[int]:
    """Write a file of each kind. Return their modes."""
    staging = Staging(str(folder), STREAM_COLUMNS)
    staging.write_owner(StagingOwner("stream", "driver"))
    staging.complete(staging.writer(1))
    assert [file.batch for file in staging.staged_files()] == [1]
    assert staging.read_owner() == StagingOwner("stream", "driver")
    return {mode(path) for path in folder.iterdir()}


def test_only_the_user_of_the_driver_may_use_a_new_folder_and_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "streams" / "archive"
    assert write_files(folder) == {0o600}
    assert mode(folder) == 0o700


def test_folder_that_was_made_for_a_group_lets_the_group_read(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o2770)
    assert write_files(folder) == {0o640}
    assert mode(folder) == 0o2770


def test_folder_that_exists_keeps_its_rights_and_its_files_are_private(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o755)
    assert write_files(folder) == {0o600}
    assert mode(folder) == 0o755
