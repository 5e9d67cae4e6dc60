"""Tests of the check of the mode of a secret file."""

from __future__ import annotations

import os
import stat

import pytest

from foqs_contract.secret_file_mode import UnsafeFileMode, check_secret_file_mode

ROOT, SOMEBODY = 0, 10_001


def status(mode: int, owner: int) -> os.stat_result:
    return os.stat_result((stat.S_IFREG | mode, 0, 0, 1, owner, SOMEBODY, 0, 0, 0, 0))


@pytest.mark.parametrize(
    ("mode", "owner"), [(0o600, SOMEBODY), (0o400, SOMEBODY), (0o600, ROOT), (0o440, ROOT), (0o640, ROOT)]
)
def test_secret_for_its_owner_and_the_group_that_root_chose_is_accepted(mode: int, owner: int) -> None:
    check_secret_file_mode("token", status(mode, owner))


@pytest.mark.parametrize("mode", [0o640, 0o440, 0o620, 0o610, 0o604, 0o602, 0o601])
def test_secret_of_a_user_that_its_group_or_others_may_use_is_refused(mode: int) -> None:
    with pytest.raises(UnsafeFileMode, match=rf"mode {mode:o}"):
        check_secret_file_mode("token", status(mode, SOMEBODY))


@pytest.mark.parametrize("mode", [0o660, 0o650, 0o644, 0o604, 0o444, 0o642, 0o641])
def test_secret_of_root_that_its_group_may_change_or_others_may_use_is_refused(mode: int) -> None:
    with pytest.raises(UnsafeFileMode, match=rf"mode {mode:o}"):
        check_secret_file_mode("token", status(mode, ROOT))


def test_remedy_leaves_the_file_readable_for_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: SOMEBODY)
    with pytest.raises(UnsafeFileMode, match="chmod 440 token"):
        check_secret_file_mode("token", status(0o444, ROOT))
    with pytest.raises(UnsafeFileMode, match="chmod 600 token"):
        check_secret_file_mode("token", status(0o644, SOMEBODY))
