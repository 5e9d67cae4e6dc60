"""Tests of the search for missing system packages, and of the message without apt-get."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_every_program_that_is_missing_is_named(tmp_path: Path) -> None:
    """Our folders do not count: one of them is called as the Thrift compiler is."""
    (tmp_path / "cat").symlink_to(str(shutil.which("cat")))

    done = subprocess.run(
        [str(shutil.which("bash")), "tools/system_packages.sh"],
        cwd=ROOT,
        env={"PATH": str(tmp_path), "CI": "true"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    named = done.stderr.splitlines()[0].split(": ")[1].split()
    assert {
        "thrift-compiler",
        "nodejs",
        "npm",
        "strace",
        "sqlite3",
        "mariadb-backup",
        "mariadb-client",
        "default-jre-headless",
        "prometheus",
    } <= set(named)
    assert len(named) == len(set(named))
