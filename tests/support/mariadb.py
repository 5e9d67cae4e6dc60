"""A real MariaDB server for tests: started on a free port, killed, started again on the same data.

Always true: its durability settings are those of production; it runs in a
temporary folder as a user that is not root, and is ended by its process id. An
initialised data folder is made once for each user and server version and copied. Knows
nothing of queues.
"""

from __future__ import annotations

import fcntl
import getpass
import hashlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final

import pymysql
import pytest

from foqs.store.mysql_driver import MysqlSettings
from tests.support.poll import until

_PACKAGE: Final = "mariadb-server"
_START_TIMEOUT_S: Final = 60.0
_STOP_TIMEOUT_S: Final = 30.0


class MariaDb:
    """One server. `start` it before use and `remove` it at the end.

    Args:
        options: more options for the server, as on its command line.
    """

    def __init__(self, *options: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="foqs-mariadb-"))
        self.port = _free_port()
        self.socket = self.folder / "s"
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self._databases = 0
        shutil.copytree(_template(), self.folder / "data")
        if os.geteuid() == 0:
            for path in (self.folder, *self.folder.rglob("*")):
                shutil.chown(path, _user(), -1)

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server was never started"
        return self._process.pid

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def start(self) -> None:
        """Returns when a connection was made and answered."""
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *_program("mariadbd"),
                    "--no-defaults",
                    f"--datadir={self.folder / 'data'}",
                    f"--socket={self.socket}",
                    f"--port={self.port}",
                    f"--pid-file={self.folder / 'pid'}",
                    # A starting server clears its temporary folder, of other servers' tables too.
                    f"--tmpdir={self.folder}",
                    "--bind-address=127.0.0.1",
                    "--skip-log-bin",
                    "--skip-name-resolve",
                    "--innodb-flush-log-at-trx-commit=1",
                    "--innodb-buffer-pool-size=128M",
                    *self._options,
                    *([f"--user={_user()}"] if os.geteuid() == 0 else []),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        until(self._answers, "MariaDB answers", _START_TIMEOUT_S)

    def stop(self) -> None:
        """Ends the server in order."""
        self._end(signal.SIGTERM)

    def kill9(self) -> None:
        """Ends the server as a crash would."""
        self._end(signal.SIGKILL)

    def remove(self) -> None:
        """Ends the server and deletes its folder."""
        self.kill9()
        shutil.rmtree(self.folder)

    def query(self, text: str, *values: object) -> list[tuple[Any, ...]]:
        """Runs one statement as root and returns its rows."""
        connection = pymysql.connect(unix_socket=str(self.socket), user="root", autocommit=True)
        try:
            with connection.cursor() as cursor:
                cursor.execute(text, values or None)
                return list(cursor.fetchall())
        finally:
            connection.close()

    def database(self) -> str:
        """Creates an empty database and returns its name."""
        self._databases += 1
        name = f"test_{self._databases}"
        self.query(f"CREATE DATABASE {name}")
        return name

    def settings(self, database: str, **changes: Any) -> MysqlSettings:
        """How to reach a database, as root over the socket."""
        given: dict[str, Any] = {"unix_socket": str(self.socket), "user": "root", "database": database}
        return MysqlSettings(**(given | changes))

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            pytest.fail(f"mariadbd ended with {self._process.returncode}:\n{self.log[-4000:]}")
        # The client library leaves a socket open when it is refused, so that is found out without it.
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(str(self.socket)):
                return False
        try:
            return self.query("SELECT 1") == [(1,)]
        except pymysql.err.OperationalError:
            return False

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)
            self._process.wait(_STOP_TIMEOUT_S)


def _template() -> Path:
    """An initialised data folder; made by whoever comes first, while the others wait."""
    version = subprocess.run([*_program("mariadbd"), "--version"], capture_output=True, check=True).stdout
    mark = hashlib.sha256(version).hexdigest()[:12]
    base = Path(tempfile.gettempdir()) / f"foqs-mariadb-template-{getpass.getuser()}-{mark}"
    base.mkdir(mode=0o755, exist_ok=True)
    with (base / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        data = base / "data"
        if not data.exists():
            fresh = base / "fresh"
            shutil.rmtree(fresh, ignore_errors=True)
            scratch = Path(tempfile.mkdtemp(dir=base))
            if os.geteuid() == 0:
                shutil.chown(scratch, _user(), -1)
            subprocess.run(
                [
                    *_program("mariadb-install-db"),
                    "--no-defaults",
                    f"--datadir={fresh}",
                    f"--tmpdir={scratch}",
                    "--auth-root-authentication-method=normal",
                    "--skip-test-db",
                    *([f"--user={_user()}"] if os.geteuid() == 0 else []),
                ],
                check=True,
                capture_output=True,
            )
            shutil.rmtree(scratch)
            fresh.rename(data)
    return data


def _program(name: str) -> list[str]:
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin")
    if found is None:
        pytest.fail(f"{name} is not installed: apt-get install {_PACKAGE}")
    return [found]


def _user() -> str:
    """Whom the server runs as when the tests run as root."""
    for name in ("mysql", "nobody"):
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    pytest.fail("there is no user `mysql` or `nobody` to run MariaDB as")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
