"""Servers to measure: MariaDB, Postgres and a FOQS host, each in a temporary folder.

Always true: each commits durably, as in production; it listens on a free port
or a socket of its own, does not run as root where it can run as another user, and
is ended by its process id. Knows nothing of load.
"""

from __future__ import annotations

import fcntl
import getpass
import hashlib
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType, TracebackType
from typing import Any, Final, Self

from perf.lib.packets import Connection, QueryFailed, query

_START_TIMEOUT_S: Final = 120.0
_POLL_S: Final = 0.02
_TAIL_BYTES: Final = 4_000
_POSTGRES_FOLDERS: Final = "/usr/lib/postgresql"
DATABASE: Final = "perf"


class CannotRun(Exception):
    """A server cannot be had; the text says why and what to do."""


class Server(ABC):
    """One process in a temporary folder; a context manager that ends it and removes the folder."""

    name: str
    stop_timeout_s = 60.0
    """A server that has not ended by then is killed."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"foqs-perf-{self.name}-"))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def launch(self, command: Sequence[str], answers: Callable[[], bool], **how: Any) -> None:
        """Starts the process; returns when it answers."""
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **how)
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not answers():
            if self._process.poll() is not None:
                raise CannotRun(f"{self.name} ended with {self._process.returncode}:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise CannotRun(f"{self.name} did not answer within {_START_TIMEOUT_S:.0f} s:\n{self.log_tail()}")
            time.sleep(_POLL_S)

    def log_tail(self) -> str:
        """The end of what the server said."""
        return (self.folder / "log").read_text(errors="replace")[-_TAIL_BYTES:]

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Ends the process and waits for its end; the data stays."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)
            try:
                self._process.wait(self.stop_timeout_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    @abstractmethod
    def set_up(self) -> None:
        """Prepares the folder and starts the process."""

    def __enter__(self) -> Self:
        try:
            self.set_up()
        except BaseException:
            self._clear()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._clear()

    def _clear(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


class MariaDb(Server):
    """MariaDB; as a context manager with one empty database, `perf`. Root has no password.

    Args:
        options: more of the server's, as on its command line.
    """

    name = "mariadb"
    # It may have millions of rows to write before it ends.
    stop_timeout_s = 600.0

    def __init__(self, buffer_pool_mib: int = 1024, *options: str) -> None:
        super().__init__()
        self.socket = self.folder / "s"
        self.port = free_port()
        self.version = ""
        self._options = (f"--innodb-buffer-pool-size={buffer_pool_mib}M", *options)

    def set_up(self) -> None:
        self.lay_out()
        self.start()
        connection = Connection(self.socket, "mysql")
        connection.run(query(f"CREATE DATABASE {DATABASE}"))
        self.version = (connection.run(query("SELECT VERSION()"))[0].rows[0][0] or b"").decode()
        connection.close()

    def lay_out(self) -> None:
        """Gives the server its first data."""
        user = _other_user("mysql")
        shutil.copytree(_template(user), self.folder / "data")
        for path in (self.folder, *self.folder.rglob("*")):
            _give(path, user)

    def start(self, *options: str) -> None:
        """Starts the server on its data. `options` hold until it is stopped."""
        user = _other_user("mysql")
        self.launch(
            [
                _program("mariadbd", "mariadb-server"),
                "--no-defaults",
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
                "--innodb-log-file-size=1G",
                # A server that starts begins cold, and does not warm itself beside what is measured.
                "--innodb-buffer-pool-load-at-startup=OFF",
                "--max-connections=1000",
                *self._options,
                *options,
                *([f"--user={user}"] if user else []),
            ],
            self._answers,
        )

    def connect(self) -> Connection:
        """A new connection to the database."""
        return Connection(self.socket, DATABASE)

    def url(self) -> str:
        """As a host's `store.url`."""
        return f"mysql://root@localhost/{DATABASE}?socket={self.socket}"

    def _answers(self) -> bool:
        try:
            Connection(self.socket, "mysql").close()
        except (OSError, QueryFailed):
            return False
        return True


class Postgres(Server):
    """Postgres with the database `postgres`, tuned for writing; trusts its socket."""

    name = "postgres"

    def __init__(self) -> None:
        super().__init__()
        self.port = free_port()
        self.version = ""
        self._user = _other_user("postgres")

    def set_up(self) -> None:
        _give(self.folder, self._user)
        _run(
            [_postgres("initdb"), "-D", str(self.folder / "data"), "-U", "postgres", "-A", "trust", "--no-sync"],
            cwd=self.folder,
            user=self._user,
        )
        self.version = _run([_postgres("postgres"), "--version"]).split()[2]
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
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        self.launch(
            [_postgres("postgres"), "-D", str(self.folder / "data"), *options],
            self._answers,
            cwd=self.folder,
            user=self._user,
        )

    def stop(self, number: signal.Signals = signal.SIGINT) -> None:
        """Ends the server, cutting connections off."""
        super().stop(number)

    def _answers(self) -> bool:
        ready = [_postgres("pg_isready"), "-q", "-h", str(self.folder), "-p", str(self.port)]
        return subprocess.run(ready, check=False).returncode == 0


class FoqsHost(Server):
    """A `foqs host` process on a store.

    Args:
        store: its `store.url`; None for SQLite files in its own folder.
        options: of the configuration, by dotted name.
        command: what is run in place of the installed program, followed by `host --config FILE`.
    """

    name = "foqs"

    def __init__(
        self,
        store: str | None,
        shards: int,
        options: Mapping[str, Any] = MappingProxyType({}),
        command: Sequence[str] = (str(Path(sys.executable).with_name("foqs")),),
    ) -> None:
        super().__init__()
        self.port, self.http_port = free_port(), free_port()
        self.data = self.folder / "data"
        self._command = command
        given = {
            "server.port": self.port,
            "server.http_port": self.http_port,
            "store.url": store or f"sqlite:{self.data}",
            "store.shards": shards,
            "coordinator.file": str(self.folder / "coordinator.json"),
            "log.level": "warning",
            **options,
        }
        (self.folder / "foqs.toml").write_text(_toml(given))

    def set_up(self) -> None:
        self.start()

    def start(self) -> None:
        """Starts the host on its data; returns when every shard is served."""
        kept = {name: value for name, value in os.environ.items() if not name.upper().startswith("FOQS_")}
        self.launch(
            [*self._command, "host", "--config", str(self.folder / "foqs.toml")],
            self._answers,
            cwd=self.folder,
            env=kept | {"NO_COLOR": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )

    @property
    def address(self) -> str:
        return f"foqs://127.0.0.1:{self.port}"

    def metrics(self) -> dict[str, float]:
        """The host's metrics, by name and labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/metrics", timeout=10) as reply:
            lines = [line.rpartition(" ") for line in reply.read().decode().splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in lines}

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/readyz", timeout=5) as reply:
                return bool(reply.status == 200)
        except (OSError, urllib.error.HTTPError):
            return False


def _template(user: str | None) -> Path:
    """MariaDB's first data, for one version and user; made by whoever comes first, while the others wait."""
    install, server = _program("mariadb-install-db", "mariadb-server"), _program("mariadbd", "mariadb-server")
    mark = hashlib.sha256(_run([server, "--version"]).encode()).hexdigest()[:12]
    base = Path(tempfile.gettempdir()) / f"foqs-mariadb-template-{getpass.getuser()}-{mark}"
    base.mkdir(mode=0o755, exist_ok=True)
    with (base / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        data, fresh = base / "data", base / "fresh"
        if not data.exists():
            shutil.rmtree(fresh, ignore_errors=True)
            with TemporaryDirectory(dir=base) as scratch:
                _give(Path(scratch), user)
                command = [install, "--no-defaults", f"--datadir={fresh}", f"--tmpdir={scratch}", "--skip-test-db"]
                as_user = [f"--user={user}"] if user else []
                _run([*command, "--auth-root-authentication-method=normal", *as_user])
            fresh.rename(data)
    return data


def free_port() -> int:
    """A port of 127.0.0.1 on which nobody listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _run(command: Sequence[str], **how: Any) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, **how)
    if done.returncode:
        raise CannotRun(f"{Path(command[0]).name} failed:\n{done.stdout}{done.stderr}")
    return str(done.stdout)


def _program(name: str, package: str) -> str:
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin")
    if found is None:
        raise CannotRun(f"{name} is not installed: apt-get install {package}")
    return found


def _postgres(name: str) -> str:
    """Debian keeps a version's programs out of the way."""
    found = sorted(Path(_POSTGRES_FOLDERS).glob(f"*/bin/{name}"), key=lambda path: int(path.parts[-3]))
    return str(found[-1]) if found else _program(name, "postgresql")


def _other_user(name: str) -> str | None:
    """Whom a server runs as when this runs as root; None when it does not."""
    if os.geteuid() != 0:
        return None
    for user in (name, "nobody"):
        try:
            return pwd.getpwnam(user).pw_name
        except KeyError:
            continue
    raise CannotRun(f"there is no user `{name}` or `nobody` to run the server as")


def _give(path: Path, user: str | None) -> None:
    """Makes a file or folder a user's; a folder can be entered by all."""
    if path.is_dir():
        path.chmod(0o755)
    if user:
        shutil.chown(path, user)


def _toml(options: Mapping[str, Any]) -> str:
    """Options by dotted name as a configuration file."""
    sections: dict[str, list[str]] = {}
    for name, value in options.items():
        section, option = name.rsplit(".", 1)
        sections.setdefault(section, []).append(f"{option} = {json.dumps(value)}\n")
    return "".join(f"[{name}]\n{''.join(lines)}" for name, lines in sections.items())
