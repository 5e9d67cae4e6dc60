"""Without MySQL 9 its tests are skipped with the reason, and fail in CI."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support import mysql9

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script finds no server."""
    script = tmp_path / "tools/mysql9.sh"
    script.parent.mkdir()
    script.write_text("#!/bin/sh\necho MySQL 9 cannot be had here: a reason >&2\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setattr(mysql9, "ROOT", tmp_path)


@pytest.mark.usefixtures("missing")
def test_a_test_without_its_server_is_skipped_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="MySQL 9 cannot be had here: a reason"):
        mysql9.MySql9()


@pytest.mark.usefixtures("missing")
def test_a_test_without_its_server_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match=r"in CI .* must run: MySQL 9 cannot be had here: a reason"):
        mysql9.MySql9()


def test_one_line_counts_the_tests_that_did_not_run() -> None:
    def skipped(reason: str) -> pytest.TestReport:
        where = ("tests/test_a.py", 1, f"Skipped: {reason}")
        return pytest.TestReport("a", ("tests/test_a.py", 1, "a"), {}, "skipped", where, "setup")

    others = [skipped("no strace")]
    assert mysql9.not_run(others) is None
    line = mysql9.not_run([*others, skipped(f"{mysql9.MISSING}: a reason"), skipped(f"{mysql9.MISSING}: a reason")])
    assert line == "2 tests did not run, as MySQL 9 cannot be had here: run make system-packages"


def test_a_system_without_apt_cannot_fetch_the_server_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "id").write_text("#!/bin/sh\necho 1000\n")
    (tmp_path / "id").chmod(0o755)
    done = subprocess.run(
        [str(shutil.which("bash")), "tools/mysql9.sh"],
        cwd=ROOT,
        env={"PATH": str(tmp_path), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "MySQL 9 cannot be had here: there is no apt-get\n"
