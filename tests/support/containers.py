"""ZooKeeper and MariaDB in containers, by testcontainers, if there is a Docker engine.

Always true: such a server has the interface of one from packages, and keeps its
port over restarts. It was tested only with a stub, in
tests/support/tests/test_containers.py.
"""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import signal
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from foqs.dev import mariadb_server, zookeeper_server
from foqs.dev.server_process import ServerProcess

ZOOKEEPER_IMAGE: Final = "zookeeper:3.8"
MARIADB_IMAGE: Final = "mariadb:10.11"
_ENGINE_TIMEOUT_S: Final = 10.0


def has_docker() -> bool:
    """Whether containers can be started: testcontainers is installed, and a Docker engine answers."""
    if importlib.util.find_spec("testcontainers") is None or shutil.which("docker") is None:
        return False
    try:
        asked = subprocess.run(["docker", "info"], capture_output=True, check=False, timeout=_ENGINE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return False
    return asked.returncode == 0


class _ContainerServer(ServerProcess):
    """A server whose process is a container's."""

    port: int
    _container: Any = None

    def run_container(self, image: str, inner_port: int, environment: Mapping[str, str]) -> None:
        """Starts the container, or starts it again on its data."""
        if self._container is None:
            made = importlib.import_module("testcontainers.core.container").DockerContainer(image)
            made = made.with_bind_ports(inner_port, ("127.0.0.1", self.port))
            for name, value in environment.items():
                made = made.with_env(name, value)
            self._container = made.start()
        else:
            self._wrapped.start()

    @property
    def _wrapped(self) -> Any:
        """The container as Docker's own library has it, its state as it is now."""
        wrapped = self._container.get_wrapped_container()
        wrapped.reload()
        return wrapped

    @property
    def pid(self) -> int:
        return int(self._wrapped.attrs["State"]["Pid"])

    @property
    def exit_code(self) -> int | None:
        if self._container is None:
            return None
        state = self._wrapped.attrs["State"]
        return None if state["Running"] else int(state["ExitCode"])

    def log_tail(self) -> str:
        return str(self._wrapped.logs(tail=50).decode(errors="replace"))

    def send_signal(self, number: signal.Signals) -> None:
        if self._container is not None and self.exit_code is None:
            self._wrapped.kill(signal=number.name)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.send_signal(number)
        if self._container is not None:
            self._wrapped.stop(timeout=int(self.stop_timeout_s))

    def close(self) -> None:
        super().close()
        if self._container is not None:
            self._container.stop()
            self._container = None


class ZooKeeper(_ContainerServer, zookeeper_server.ZooKeeper):
    """See `foqs.dev.zookeeper_server`."""

    def start(self) -> None:
        self.run_container(ZOOKEEPER_IMAGE, 2181, {"ZOO_4LW_COMMANDS_WHITELIST": "srvr", "ZOO_TICK_TIME": "500"})
        self.wait_until_ready(self.is_ready)


class MariaDb(_ContainerServer, mariadb_server.MariaDb):
    """See `foqs.dev.mariadb_server`; root has no password and comes over TCP."""

    def __init__(self, folder: Path | None = None, port: int = 0) -> None:
        super().__init__(folder, port)

    @property
    def connect_arguments(self) -> dict[str, Any]:
        return {"host": "127.0.0.1", "port": self.port}

    def open_socket(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), mariadb_server.PROBE_S)

    def create_data(self) -> None:
        """The image does it."""

    def start(self, *options: str) -> None:
        if options:
            raise NotImplementedError("a container's options do not change: use a server from packages")
        self.run_container(MARIADB_IMAGE, 3306, {"MARIADB_ALLOW_EMPTY_ROOT_PASSWORD": "1", "MARIADB_ROOT_HOST": "%"})
        self.wait_until_ready(self.is_ready)
