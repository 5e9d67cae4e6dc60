"""An older version of FOQS: its wheel, installed in a folder, and its tests.

Always true: the wheel is built from the history of this repository, once for all runs of
the tests, and never changes the installation that runs them. Knows nothing of what the
versions have in common.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
OLDER_TABLES: Final = "19e14b3"
"""The commit of the older version of upgrades, the last one before migration 8: see docs/design/upgrades.md."""
OLDER: Final = "a937532"
"""The commit of the older version.

Clients and hosts speak the same bytes since the first commit. This one is the last state before the packages, the options
and the contract got the words of the glossary. Its hosts form no cluster with those of this version.
"""


@dataclass(slots=True, frozen=True)
class OlderVersion:
    """An installed older version.

    Attributes:
        commit: of which it was built.
        site: the folder with its packages.
        suite: a folder with its tests, its contract and its settings of pytest, and without its packages.
        program: its `foqs`.
    """

    commit: str
    site: Path
    suite: Path
    program: Path

    @property
    def host(self) -> Sequence[str]:
        """The command of a host, without its configuration."""
        return (str(self.program), "host")


def installed(config: pytest.Config, commit: str) -> OlderVersion:
    """Return the version of a commit; build and install its wheel if that was not done before."""
    folder = config.cache.mkdir("older-versions")
    ready = folder / commit
    with (folder / f"{commit}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the workers of a run share the folder
        if not ready.is_dir():
            fresh = folder / f"{commit}.new"
            shutil.rmtree(fresh, ignore_errors=True)
            _install(commit, fresh)
            fresh.rename(ready)
    return OlderVersion(commit, ready / "site", ready / "suite", ready / "foqs")


def _install(commit: str, folder: Path) -> None:
    """Build the wheel and install it below `folder`, without its dependencies: those of this version serve it."""
    source, suite = folder / "source", folder / "suite"
    suite.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=False)
    assert archive.returncode == 0, (
        f"git archive {commit} failed: {archive.stderr.decode().strip()}; "
        "these tests need the history of the repository, so clone it without --depth"
    )
    source.mkdir()
    subprocess.run(["tar", "--extract", "--directory", str(source)], input=archive.stdout, check=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    env = {**os.environ, "PIP_NO_INDEX": "1"}  # the build needs only what is installed
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(source)]
    subprocess.run(build, check=True, env=env)
    [wheel] = folder.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(folder / "site"), str(wheel)], check=True, env=env)
    for name in ("tests", "thrift", "pyproject.toml"):
        (source / name).rename(suite / name)
    shutil.rmtree(source)
    program = folder / "foqs"
    program.write_text(
        "#!/bin/sh\n"
        "unset FOQS_PURE\n"  # which not every version knows
        'folder=$(dirname "$(readlink -f "$0")")\n'
        f'PYTHONPATH="$folder/site" exec {sys.executable} "$folder/site/bin/foqs" "$@"\n'
    )
    program.chmod(0o755)
