"""The installation of the older version of the upgrade tests: a wheel of its commit, in an environment of its own.

Always true: it is built once for all tests of a session. Needs the history of the
repository: a shallow clone fails with a sentence.
"""

from __future__ import annotations

import fcntl
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path
from typing import Final

import pytest

from tests.integration.test_release import Installation, install

ROOT: Final = Path(__file__).resolve().parents[2]
OLDER_COMMIT: Final = "19e14b3372080218d5d7396076e4761e205b8a45"
"""The last commit before migration 8; see docs/design/upgrades.md."""


def older_program(factory: pytest.TempPathFactory) -> str:
    """Return the path of the older `foqs`."""
    return str(install_commit(OLDER_COMMIT, factory).program)


def install_commit(commit: str, factory: pytest.TempPathFactory) -> Installation:
    """Build the wheel of a commit and install it, once for the processes of a test session."""
    base = factory.getbasetemp()
    shared = base.parent if base.name.startswith("popen-") else base
    folder = shared / f"older-{commit[:12]}"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            install(folder, _build(commit, folder))
            (folder / "done").touch()
    return Installation(folder)


def _build(commit: str, folder: Path) -> Path:
    tree = folder / "tree"
    with tarfile.open(fileobj=BytesIO(_archive(commit))) as archive:
        archive.extractall(tree)  # Our own archive. Python 3.11.2 has no `filter`.
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    [wheel] = folder.glob("*.whl")
    return wheel


def _archive(commit: str) -> bytes:
    """Return the files of a commit as a tar archive. Fails the test if the history lacks it."""
    done = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True)
    if done.returncode:
        pytest.fail(
            f"the history has no commit {commit[:12]}, from which the older version is built: this is no full clone "
            f"(git fetch --unshallow makes it one): {done.stderr.decode(errors='replace').strip()}",
            pytrace=False,
        )
    return done.stdout
