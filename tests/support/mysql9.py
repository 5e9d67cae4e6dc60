"""A real MySQL 9 server for tests, used as `tests.support.mariadb` is.

Always true: durability and users are those of the MariaDB of the tests, so a test
runs on either. `tools/mysql9.sh` fetches the program; where that was not possible,
the tests on MySQL 9 are skipped with that reason, and fail in CI. Knows nothing of queues.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from foqs.dev import mariadb_server
from foqs.dev.mysql9_server import REDO_LOG, first_data
from tests.support import containers
from tests.support.mariadb import MariaDb

ROOT: Final = Path(__file__).resolve().parents[2]
MISSING: Final = "MySQL 9 cannot be had here"
"""The beginning of the script's message if there is no server."""


class MySql9(MariaDb):
    """One server. `start` it before use and `remove` it at the end."""

    name = "mysql9"

    def __init__(self, *options: str) -> None:
        self._program = mysqld()
        super().__init__(*options)

    def command(self) -> list[str]:
        return [self._program, REDO_LOG]

    def template(self, user: str | None) -> Path:
        return first_data(self._program, user)


class MySql9InFolder(mariadb_server.MariaDb):
    """A MySQL 9 server with its data in a given folder, as a cluster uses it."""

    name = "mysql9"

    def __init__(self, folder: Path, port: int) -> None:
        self._program = mysqld()
        super().__init__(folder, port)

    def command(self) -> list[str]:
        return [self._program, REDO_LOG]

    def template(self, user: str | None) -> Path:
        return first_data(self._program, user)


KINDS: Final[Mapping[str, type[MariaDb]]] = {"mariadb": MariaDb, "mysql9": MySql9}
IN_CONTAINERS: Final[Mapping[str, type[MariaDb]]] = {"mariadb": containers.MariaDb, "mysql9": containers.MySql9}
BOTH: Final = tuple(pytest.param(kind, marks=pytest.mark.mysql) for kind in KINDS)
"""The parameters of a test that runs on either kind of server."""
MYSQL9_IF_LONG: Final = ("mariadb", pytest.param("mysql9", marks=pytest.mark.long))
"""For stories of servers: MySQL 9 is in the long tests."""


@contextmanager
def running(kind: str, *options: str) -> Iterator[MariaDb]:
    """A started server of that kind, removed at the end. In make test-containers it runs in a container."""
    server = (IN_CONTAINERS if containers.are_wanted() else KINDS)[kind](*options)
    try:
        server.start()
        yield server
    finally:
        server.remove()


def mysqld() -> str:
    """The program that runs a MySQL 9. Skips the test where there is none; fails it in CI."""
    found = subprocess.run([ROOT / "tools/mysql9.sh", "cached"], capture_output=True, text=True, check=False)
    if found.returncode == 0:
        return found.stdout.strip()
    why = found.stderr.strip()
    if os.environ.get("CI"):
        pytest.fail(f"in CI the tests on MySQL 9 must run: {why}", pytrace=False)
    pytest.skip(why)


def not_run(skipped: Iterable[pytest.TestReport]) -> str | None:
    """Return a line about the tests that were skipped without MySQL 9; None if there are none."""
    count = sum(isinstance(each.longrepr, tuple) and MISSING in each.longrepr[2] for each in skipped)
    return f"{count} tests did not run, as {MISSING}: run make system-packages" if count else None
