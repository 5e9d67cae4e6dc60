#!/usr/bin/env python3
"""Builds the files of a release: `dist.py [--compiled] [--check] [--uncommitted] [FOLDER]`, with hatchling of the environment.

FOLDER, by default dist, gets the source archive and the plain wheel; with `--compiled` also the wheel of this
Python and machine with the hot modules compiled. The wheels are built from the source archive. The time
in the files is SOURCE_DATE_EPOCH, by default that of the last commit, so that a second build has the same bytes;
`--check` builds a second time, in another folder, and compares. The archive holds every file of the tree that
git does not ignore, so a tree with changes is refused; `--uncommitted` accepts it.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent


def build(folder: Path, *, compiled: bool, epoch: int) -> dict[str, str]:
    """Build into the folder and return the SHA-256 of each file by its name."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = {
        **{name: value for name, value in os.environ.items() if name not in ("FOQS_COMPILE", "CFLAGS", "PYTHONPATH")},
        "SOURCE_DATE_EPOCH": str(epoch),
        # Hash order must not decide the order of what mypyc writes.
        "PYTHONHASHSEED": "0",
    }
    with tempfile.TemporaryDirectory(prefix="foqs-dist-") as scratch:
        out = Path(scratch) / "out"
        _hatchling(ROOT, "sdist", out, environment)
        [archive] = out.iterdir()
        with tarfile.open(archive) as file:
            file.extractall(scratch)  # Our own archive. Python 3.11.2 has no `filter`.
        tree = Path(scratch) / archive.name.removesuffix(".tar.gz")
        _hatchling(tree, "wheel", out, environment)
        if compiled:
            # Debug information and file names hold the folder of the build.
            flags = f"-g0 -ffile-prefix-map={tree}=."
            _hatchling(tree, "wheel", out, environment | {"FOQS_COMPILE": "1", "CFLAGS": flags})
        return {path.name: _deliver(path, folder) for path in sorted(out.iterdir())}


def _hatchling(tree: Path, target: str, out: Path, environment: Mapping[str, str]) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(out)]
    done = subprocess.run(command, cwd=tree, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        sys.exit(f"the {target} cannot be built:\n{done.stdout.decode(errors='replace')}")


def _deliver(path: Path, folder: Path) -> str:
    shutil.copyfile(path, folder / path.name)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _epoch() -> int:
    """Return SOURCE_DATE_EPOCH, or the time of the last commit."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(given)
    done = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        sys.exit("this is no git checkout: set SOURCE_DATE_EPOCH to the release's time in seconds")
    return int(done.stdout)


def _check_committed() -> None:
    """End if a file of the tree is not as it was committed. A tree without git is a source archive."""
    done = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True)
    if changed := done.stdout.splitlines():
        sys.exit(
            f"{len(changed)} files are not committed and would be in the archive, such as {changed[0][3:]}: "
            "commit or remove them, or use --uncommitted"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Builds the source archive and the wheels of a release.")
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "dist")
    parser.add_argument("--compiled", action="store_true", help="also the compiled wheel")
    parser.add_argument("--check", action="store_true", help="build twice and compare the bytes")
    parser.add_argument("--uncommitted", action="store_true", help="accept a tree with uncommitted changes")
    arguments = parser.parse_args()
    if not arguments.uncommitted:
        _check_committed()
    epoch = _epoch()
    built = build(arguments.folder, compiled=arguments.compiled, epoch=epoch)
    for name, digest in built.items():
        print(f"{digest}  {name}")
    if arguments.check:
        with tempfile.TemporaryDirectory(prefix="foqs-dist-again-") as again:
            second = build(Path(again), compiled=arguments.compiled, epoch=epoch)
        if differing := [name for name in built | second if built.get(name) != second.get(name)]:
            sys.exit(f"a second build has other bytes: {', '.join(differing)}")
        print("a second build has the same bytes")


if __name__ == "__main__":
    main()
