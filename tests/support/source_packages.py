"""Other people's source packages, with their tests: fetched by version, once for a machine.

Always true: an archive has the SHA-256 that is written here, or the test fails; a
package is unpacked completely or not at all, also if several test processes want it.
Nothing of it is committed.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple


class SourcePackage(NamedTuple):
    """A source package of the package index."""

    name: str
    version: str
    sha256: str

    @property
    def folder_name(self) -> str:
        return f"{self.name}-{self.version}"


BOTOCORE: Final = SourcePackage(
    "botocore", "1.44.8", "945b783c1a1259e2a8b078f3f3dd40fae32ea84ab01d3a9953af6b378da7108a"
)
MOTO: Final = SourcePackage("moto", "5.2.5", "391857257d5dac144334013c2c10e599def5f0562f553e979160140bd7bd9cf6")
DJANGO_TASKS_DB: Final = SourcePackage(
    "django_tasks_db", "0.13.0", "09630d417cf722b07e1439b837403e18e86455908ba532fa6795b0d23dc3ff23"
)
KOMBU: Final = SourcePackage("kombu", "5.7.0", "31e62fdfd2381caa3422f8e02b84a491d9a2180ddda74507b57f4cb1e1c2c2c9")


def cache_folder() -> Path:
    """Return this user's folder of fetched packages; only this user may enter it."""
    folder = Path(tempfile.gettempdir()) / f"foqs-fetched-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.stat()
    assert status.st_uid == os.getuid() and status.st_mode & 0o077 == 0, f"others may write {folder}; delete it"
    return folder


def fetched(package: SourcePackage) -> Path:
    """Return the folder of an unpacked source package."""
    folder = cache_folder() / package.folder_name
    with locked(package.folder_name):
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=cache_folder()) as name:
                _unpack(_download(package, Path(name)), Path(name) / "unpacked")
                (Path(name) / "unpacked" / package.folder_name).rename(folder)
    return folder


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold a lock among the processes of this machine."""
    with (cache_folder() / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def run(*command: str, folder: Path | None = None) -> str:
    """Run a command; an error shows its output."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=folder, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)} failed:\n{done.stdout[-4_000:]}"
    return done.stdout


def _download(package: SourcePackage, folder: Path) -> Path:
    wanted = folder / "wanted.txt"
    wanted.write_text(f"{package.name}=={package.version} --hash=sha256:{package.sha256}\n")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet")
    # Only the package itself comes as source: what pip needs to read its metadata would otherwise be built, too.
    run(*pip, "--no-deps", "--no-binary", package.name, "--require-hashes", "-r", str(wanted), "-d", str(folder))
    (archive,) = folder.glob("*.tar.gz")
    return archive


def _unpack(archive: Path, folder: Path) -> None:
    folder.mkdir()
    run("tar", "-xzf", str(archive), "-C", str(folder))
