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
"""The longest path of a socket that the system accepts, with a margin."""
PROBE_S: Final = 5.0
_GREETING_BYTES: Final = 5
_PROTOCOL_BYTE: Final = b"\x0a"
"""The first byte of a greeting, after its length and number."""


class MariaDb(ServerProcess):
    """A MariaDB server.

    Args:
        port: the port; 0 is any free port.
        options: further options of the server's command line; the last of equal ones wins.
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
        """Create the server's initial data if it has none."""
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
        """Start the server with its data. `options` hold until it is stopped."""
        self.launch(self.start_command(*options), self.is_ready)

    def start_command(self, *options: str) -> list[str]:
        """Return the command that starts the server with its data."""
        user = unprivileged_user(_USER)
        return [
            *self.command(),
            f"--datadir={self.folder / 'data'}",
            f"--socket={self.socket}",
            f"--pid-file={self.folder / 'pid'}",
            # A starting server deletes temporary tables in its folder, in a shared folder also those of others.
            f"--tmpdir={self.folder}",
            *self.settings_options(),
            *options,
            *([f"--user={user}"] if user else []),
        ]

    def settings_options(self) -> list[str]:
        """Return the options that do not name a file: where it listens, durability, memory, and those that were given."""
        return [
            f"--port={self.port}",
            "--bind-address=127.0.0.1",
            "--skip-log-bin",
            "--skip-name-resolve",
            "--innodb-flush-log-at-trx-commit=1",
            "--innodb-buffer-pool-size=128M",
            # The server starts with a cold cache and does not load it during a measurement.
            "--innodb-buffer-pool-load-at-startup=OFF",
            "--max-connections=1000",
            *self._options,
        ]

    def command(self) -> list[str]:
        """Return the server's program and the options of this kind of server."""
        return [find_program("mariadbd", _PACKAGE), "--no-defaults", "--innodb-log-file-size=96M"]

    def template(self, user: str | None) -> Path:
        """Return a folder with a new server's initial data for this user."""
        return _data_template(user)

    def query(self, text: str, *values: object) -> list[tuple[Any, ...]]:
        """Run one statement as root and return its rows."""
        connection = pymysql.connect(user="root", autocommit=True, **self.connect_arguments)
        try:
            with connection.cursor() as cursor:
                cursor.execute(text, values or None)
                return list(cursor.fetchall())
        finally:
            connection.close()

    @property
    def connect_arguments(self) -> dict[str, Any]:
        """Return the arguments of pymysql's `connect` for root."""
        return {"unix_socket": str(self.socket)}

    def open_socket(self) -> socket.socket:
        """Return a new connection to the server. Raises OSError."""
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.settimeout(PROBE_S)
            connection.connect(str(self.socket))
        except BaseException:
            connection.close()
            raise
        return connection

    def url(self, database: str) -> str:
        """Return the store URL of a database."""
        return f"mysql://root@127.0.0.1:{self.port}/{database}"

    def is_ready(self) -> bool:
        """Return whether the server sends its greeting; an error begins with another byte."""
        try:
            with self.open_socket() as connection:
                return connection.recv(_GREETING_BYTES, socket.MSG_WAITALL)[-1:] == _PROTOCOL_BYTE
        except OSError:
            return False


def _data_template(user: str | None) -> Path:
    """Return MariaDB's initial data for one version and user. The first caller creates it, others wait."""
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
