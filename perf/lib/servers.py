"""Servers to measure: MariaDB, MySQL 9, Postgres and a FOQS host, each in a temporary folder.

Always true: each commits durably, as in production, and listens on a free port or
its own socket. It does not run as root if it can run as another user, and is ended
by its process id. Knows nothing of load.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from foqs.dev import mariadb_server, mysql9_server
from foqs.dev.host_process import PROGRAM, HostProcess
from foqs.dev.server_process import ServerNotAvailable as ServerNotAvailable
from foqs.dev.server_process import (
    ServerProcess,
    find_program,
    free_port,
    give_to_user,
    run_program,
    temporary_folder,
    unprivileged_user,
)
from perf.lib.machine import ROOT
from perf.lib.packets import Connection

_POSTGRES_FOLDERS: Final = "/usr/lib/postgresql"
DATABASE: Final = "perf"


class MariaDb(mariadb_server.MariaDb):
    """MariaDB with one empty database, `perf`.

    Args:
        options: further options of the server, as on its command line.
    """

    def __init__(self, buffer_pool_mib: int = 1024, *options: str) -> None:
        super().__init__(
            options=(f"--innodb-buffer-pool-size={buffer_pool_mib}M", "--innodb-log-file-size=1G", *options)
        )
        self.version = ""

    def set_up(self) -> None:
        super().set_up()
        self.query(f"CREATE DATABASE {DATABASE}")
        self.version = str(self.query("SELECT VERSION()")[0][0])

    def connect(self) -> Connection:
        """Open a connection to the database."""
        return Connection(self.socket, DATABASE)

    def url(self, database: str = DATABASE) -> str:
        """The `store.url` of a host, over the socket."""
        return f"mysql://root@localhost/{database}?socket={self.socket}"


class MySql9(MariaDb):
    """MySQL 9 with the same, as `tools/mysql9.sh` has fetched it."""

    name = "mysql9"

    def __init__(self, buffer_pool_mib: int = 1024, *options: str) -> None:
        found = subprocess.run([ROOT / "tools/mysql9.sh", "cached"], capture_output=True, text=True, check=False)
        if found.returncode:
            raise ServerNotAvailable(found.stderr.strip())
        self._program = found.stdout.strip()
        super().__init__(buffer_pool_mib, *options)
        # Its redo log has another name; the last of equal options counts.
        self._options = tuple(each for each in self._options if "log-file-size" not in each)

    def command(self) -> list[str]:
        return [self._program, "--innodb-redo-log-capacity=1G"]

    def template(self, user: str | None) -> Path:
        return mysql9_server.first_data(self._program, user)


class Postgres(ServerProcess):
    """Postgres with the database `postgres`, tuned for writing; trusts its socket.

    Args:
        settings: further settings, or other values.
    """

    name = "postgres"

    def __init__(self, settings: Mapping[str, str] = MappingProxyType({})) -> None:
        super().__init__()
        self._settings = settings
        self.port = free_port()
        self.version = ""
        self._user = unprivileged_user("postgres")

    def set_up(self) -> None:
        give_to_user(self.folder, self._user)
        run_program(
            [_postgres("initdb"), "-D", str(self.folder / "data"), "-U", "postgres", "-A", "trust", "--no-sync"],
            cwd=self.folder,
            user=self._user,
        )
        self.version = run_program([_postgres("postgres"), "--version"]).split()[2]
        self.start()

    def start(self) -> None:
        """Start the server on its data."""
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.folder),
            "port": self.port,
            "fsync": "on",
            "synchronous_commit": "on",
            "full_page_writes": "on",
            "shared_buffers": "1GB",
            "wal_buffers": "64MB",
            "max_wal_size": "8GB",
            "min_wal_size": "2GB",
            "checkpoint_timeout": "30min",
            "wal_level": "minimal",
            "max_wal_senders": 0,
            "max_connections": 300,
            "jit": "off",
            "autovacuum_naptime": "1s",
            **self._settings,
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        self.launch(
            [_postgres("postgres"), "-D", str(self.folder / "data"), *options],
            self._answers,
            cwd=self.folder,
            user=self._user,
        )

    def stop(self, number: signal.Signals = signal.SIGINT) -> None:
        """End the server and its connections."""
        super().stop(number)

    def _answers(self) -> bool:
        ready = [_postgres("pg_isready"), "-q", "-h", str(self.folder), "-p", str(self.port)]
        return subprocess.run(ready, check=False).returncode == 0


class FoqsHost(HostProcess):
    """A `foqs host` process on a store.

    Args:
        store: its `store.url`; None for SQLite files in its own folder.
        options: options of the configuration, by dotted name.
        command: the command to run in place of the installed program, followed by `host --config FILE`.
    """

    def __init__(
        self,
        store: str | None,
        shards: int,
        options: Mapping[str, Any] = MappingProxyType({}),
        command: Sequence[str] = PROGRAM,
    ) -> None:
        folder = temporary_folder(self.name)
        self.data = folder / "data"
        given = {
            "store.url": store or f"sqlite:{self.data}",
            "store.shards": shards,
            "coordinator.file": str(folder / "coordinator.json"),
            "log.level": "warning",
            **options,
        }
        super().__init__(folder, given, command)

    def close(self) -> None:
        super().close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def metrics(self) -> dict[str, float]:
        """Return the host's metrics by name and labels."""
        lines = [line.rpartition(" ") for line in self.get("/metrics").splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in lines}


def _postgres(name: str) -> str:
    """Return the path of a Postgres program: Debian keeps them outside the search path."""
    found = sorted(Path(_POSTGRES_FOLDERS).glob(f"*/bin/{name}"), key=lambda path: int(path.parts[-3]))
    return str(found[-1]) if found else find_program(name, "postgresql")
