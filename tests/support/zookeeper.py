"""A real ZooKeeper server for tests: started, stopped, frozen, started again on the same data.

Always true: it runs in a temporary folder, on a port of its own that stays over
restarts; when `start` returns it grants sessions; it is ended by its process id.
Knows nothing of registries.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError

from tests.support.frozen import freeze, thaw
from tests.support.poll import until
from tests.support.ports import free_port

_JAR: Final = Path("/usr/share/java/zookeeper.jar")
"""It names the others that it needs, but for those that write its log."""
_LOG_JARS: Final = ("slf4j-log4j12.jar", "log4j-1.2.jar")
_START_TIMEOUT_S: Final = 60.0
_END_TIMEOUT_S: Final = 30.0
TICK_MS: Final = 100
"""Sessions end within one tick of their timeout."""
SESSION_TIMEOUT_MS_MIN: Final = 500
SESSION_TIMEOUT_MS_MAX: Final = 20_000


class ZooKeeper:
    """One server, alone; a context manager that starts it, ends it and deletes its folder."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="foqs-zookeeper-"))
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        lines = {
            "tickTime": TICK_MS,
            "dataDir": self.folder / "data",
            "clientPort": self.port,
            "clientPortAddress": "127.0.0.1",
            "admin.enableServer": "false",
            "maxClientCnxns": 0,
            "minSessionTimeout": SESSION_TIMEOUT_MS_MIN,
            "maxSessionTimeout": SESSION_TIMEOUT_MS_MAX,
        }
        (self.folder / "zoo.cfg").write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        (self.folder / "log4j.properties").write_text(
            "log4j.rootLogger=INFO, OUT\n"
            "log4j.appender.OUT=org.apache.log4j.ConsoleAppender\n"
            "log4j.appender.OUT.layout=org.apache.log4j.PatternLayout\n"
            "log4j.appender.OUT.layout.ConversionPattern=%d %p %m%n\n"
        )

    @property
    def hosts(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server was never started"
        return self._process.pid

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def start(self) -> None:
        """Starts the server on its data."""
        assert _JAR.exists(), f"{_JAR} is not there: run make system-packages"
        jars = [str(path) for path in (self.folder, _JAR, *map(_JAR.with_name, _LOG_JARS))]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    "java",
                    "-Xmx256m",
                    "-XX:+UseSerialGC",
                    "-XX:TieredStopAtLevel=1",
                    "-cp",
                    ":".join(jars),
                    "org.apache.zookeeper.server.ZooKeeperServerMain",
                    str(self.folder / "zoo.cfg"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
            )
        until(self._grants, f"ZooKeeper on port {self.port} grants a session", _START_TIMEOUT_S)

    def stop(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Ends the server; its data stays."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)
            self._process.wait(_END_TIMEOUT_S)

    def freeze(self) -> None:
        """The server keeps its connections and answers nobody, until `thaw`."""
        freeze(self.pid)

    def thaw(self) -> None:
        thaw(self.pid)

    @contextlib.contextmanager
    def client(self) -> Iterator[KazooClient]:
        """A plain client, to look and to meddle."""
        client = KazooClient(self.hosts, timeout=10.0)
        client.start(timeout=_START_TIMEOUT_S)
        try:
            yield client
        finally:
            client.stop()
            client.close()

    def _grants(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"ZooKeeper ended by itself:\n{self.log[-4_000:]}"
        client = KazooClient(self.hosts, timeout=10.0)
        try:
            client.start(timeout=1.0)
        except KazooTimeoutError:
            return False
        client.stop()
        client.close()
        return True

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
