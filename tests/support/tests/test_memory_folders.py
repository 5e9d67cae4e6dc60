"""Servers have their data in memory where there is room."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.support import memory_folders
from tests.support.memory_folders import temporary_folder


@pytest.mark.parametrize(("name", "room", "is_there"), [("", 1, True), ("", 1 << 62, False), ("absent", 1, False)])
def test_folder_is_in_memory_if_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, room: int, is_there: bool
) -> None:
    monkeypatch.setattr(memory_folders, "ROOM_BYTES_MIN", room)
    folder = temporary_folder("mariadb", tmp_path / name)
    assert folder.parent == (tmp_path if is_there else Path(tempfile.gettempdir()))
    folder.rmdir()


def test_folder_is_elsewhere_if_the_machine_has_no_memory_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_folders, "ROOM_BYTES_MIN", 1)
    monkeypatch.setattr(memory_folders, "available_bytes", lambda: 0)
    folder = temporary_folder("mariadb", tmp_path)
    assert folder.parent == Path(tempfile.gettempdir())
    folder.rmdir()
