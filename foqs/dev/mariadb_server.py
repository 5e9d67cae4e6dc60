"""A MariaDB server of this machine.

Always true: it commits durably, as in production; root has no password and can
come from this machine only; it does not run as root. Knows nothing of queues.
"""

from __future__ import annotations

import fcntl
import getpass
import hashlib
import shutil
import socket
import tempfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pymysql

from foqs.dev.server_process import (
    ServerNotAvailable,
    ServerProcess,
    find_program,
    free_port,
    give_to_user,
    run_program,
    unprivileged_user,
)

_USER: Final = "mysql"
_PACKAGE: Final = "mariadb-server"
_SOCKET_BYTES_MAX: Final = 100
"""Of the path of a socket; the system takes few more."""
PROBE_S: Final = 5.0
_GREETING_BYTES: Final = 5
_PROTOCOL_BYTE: Final = b"\x0a"
"""The first byte of a greeting, after its length and number."""


class MariaDb(ServerProcess):
    """MariaDB.

    Args:
        port: 0: any that is free.
        options: more of the server's, as on its command line; the last of equal ones counts.
    """

    name = "mariadb"
    # It may have millions of rows to write before it ends.
    stop_timeout_s = 600.0

    def __init__(self, folder: Path | None = None, port: int = 0, options: tuple[str, ...] = ()) -> None:
        super().__init__(folder)
        self.socket = self.folder / "s"
        self.port = port or free_port()
        self._options = options
        if len(bytes(self.socket)) > _SOCKET_BYTES_MAX:
            raise ServerNotAvailable(f"{self.folder} is too long a path for the server's socket; choose a shorter one")

    def set_up(self) -> None:
        self.create_data()
        self.start()

    def create_data(self) -> None:
        """Gives the server its first data, where it has none."""
        data, fresh = self.folder / "data", self.folder / "data.new"
        if data.exists():
            return
        user = unprivileged_user(_USER)
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.copytree(self.template(user), fresh)
        for path in (self.folder, *self.folder.rglob("*")):
            give_to_user(path, user)
        fresh.rename(data)

    def start(self, *options: str) -> None:
        """Starts the server on its data. `options` hold until it is stopped."""
        user = unprivileged_user(_USER)
        self.launch(
            [
                *self.command(),
                f"--datadir={self.folder / 'data'}",
                f"--socket={self.socket}",
                f"--port={self.port}",
                f"--pid-file={self.folder / 'pid'}",
                # A server that starts deletes temporary tables where it keeps its own: others' too, in a shared folder.
                f"--tmpdir={self.folder}",
                "--bind-address=127.0.0.1",
                "--skip-log-bin",
                "--skip-name-resolve",
                "--innodb-flush-log-at-trx-commit=1",
                "--innodb-buffer-pool-size=128M",
                # A server that starts begins cold, and does not warm itself beside what is measured.
                "--innodb-buffer-pool-load-at-startup=OFF",
                "--max-connections=1000",
                *self._options,
                *options,
                *([f"--user={user}"] if user else []),
            ],
            self.is_ready,
        )

    def command(self) -> list[str]:
        """The server's program and the options that only this kind of server knows."""
        return [find_program("mariadbd", _PACKAGE), "--no-defaults", "--innodb-log-file-size=96M"]

    def template(self, user: str | None) -> Path:
        """A folder with a new server's first data, made for this user."""
        return _data_template(user)

    def query(self, text: str, *values: object) -> list[tuple[Any, ...]]:
        """Runs one statement as root and returns its rows."""
        connection = pymysql.connect(user="root", autocommit=True, **self.connect_arguments)
        try:
            with connection.cursor() as cursor:
                cursor.execute(text, values or None)
                return list(cursor.fetchall())
        finally:
            connection.close()

    @property
    def connect_arguments(self) -> dict[str, Any]:
        """How root reaches it: arguments of pymysql's `connect`."""
        return {"unix_socket": str(self.socket)}

    def open_socket(self) -> socket.socket:
        """A connection to it, on which nothing was said yet. Raises OSError."""
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.settimeout(PROBE_S)
            connection.connect(str(self.socket))
        except BaseException:
            connection.close()
            raise
        return connection

    def url(self, database: str) -> str:
        """A database as a store URL."""
        return f"mysql://root@127.0.0.1:{self.port}/{database}"

    def is_ready(self) -> bool:
        """It greets whoever comes; an error in place of the greeting begins otherwise."""
        try:
            with self.open_socket() as connection:
                return connection.recv(_GREETING_BYTES, socket.MSG_WAITALL)[-1:] == _PROTOCOL_BYTE
        except OSError:
            return False


def _data_template(user: str | None) -> Path:
    """MariaDB's first data, for one version and user; made by whoever comes first, while the others wait."""
    install, server = find_program("mariadb-install-db", _PACKAGE), find_program("mariadbd", _PACKAGE)
    mark = hashlib.sha256(run_program([server, "--version"]).encode()).hexdigest()[:12]
    base = Path(tempfile.gettempdir()) / f"foqs-mariadb-template-{getpass.getuser()}-{mark}"
    base.mkdir(mode=0o755, exist_ok=True)
    with (base / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        data, fresh = base / "data", base / "fresh"
        if not data.exists():
            shutil.rmtree(fresh, ignore_errors=True)
            with TemporaryDirectory(dir=base) as scratch:
                give_to_user(Path(scratch), user)
                command = [install, "--no-defaults", f"--datadir={fresh}", f"--tmpdir={scratch}", "--skip-test-db"]
                as_user = [f"--user={user}"] if user else []
                run_program([*command, "--auth-root-authentication-method=normal", *as_user])
            fresh.rename(data)
    return data
