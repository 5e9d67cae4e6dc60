"""A lock of files is held by one process at a time, and names it."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from shardmgr.process_lock import NotReserved, reserved


def test_second_holder_is_refused_with_the_id_of_the_first(tmp_path: Path) -> None:
    lock, data = tmp_path / "data" / "host.lock", tmp_path / "data"
    with reserved(lock, data):
        with (
            pytest.raises(NotReserved, match=rf"{data} is in use by the process {os.getpid()}, .*stop that one"),
            reserved(lock, data),
        ):
            pass
        assert stat.S_IMODE(lock.stat().st_mode) == 0o600
        assert stat.S_IMODE(data.stat().st_mode) == 0o700
    with reserved(lock, data):
        assert lock.read_text() == f"{os.getpid()}\n"


def test_lock_file_that_a_dead_process_left_is_free(tmp_path: Path) -> None:
    lock = tmp_path / "host.lock"
    lock.write_text("4194305\n")
    with reserved(lock, tmp_path):
        assert lock.read_text() == f"{os.getpid()}\n"


def test_file_system_without_locks_is_an_error_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("shardmgr.process_lock.fcntl.flock", refuse)
    with (
        pytest.raises(NotReserved, match=r"cannot be locked .*put .* on a local disk"),
        reserved(tmp_path / "host.lock", tmp_path),
    ):
        pass


def test_lock_file_that_cannot_be_created_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(NotReserved, match=r"cannot be written .*give this user the right"),
        reserved(tmp_path / "file" / "host.lock", tmp_path),
    ):
        pass
