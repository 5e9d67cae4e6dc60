"""What images are built of, in a folder of its own, so that the tree's dist/ stays as it is."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.support.containers import ROOT

_PARTS: Final = (".dockerignore", "constraints.txt", "configs", "tools/mysql9.sh")


@pytest.fixture(scope="session")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the tree is after `make image-packages`."""
    folder = tmp_path_factory.mktemp("context")
    for part in _PARTS:
        (folder / part).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
        copy(ROOT / part, folder / part)
    run([sys.executable, str(ROOT / "tools/dist.py"), "--uncommitted", str(folder / "dist")])
    [wheel] = (folder / "dist").glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
    run([*pip, "-d", str(folder / "dist"), f"{wheel}[server]", "-c", str(ROOT / "constraints.txt")])
    return folder


def run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
