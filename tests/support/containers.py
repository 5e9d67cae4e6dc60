"""MariaDB, MySQL 9 and ZooKeeper in containers, by testcontainers, from the images of configs/docker/servers.

Always true: such a server has the interface of one from packages. It listens on
127.0.0.1 of this machine, on a port that it keeps, because its container shares the
machine's network. Each start is a new container on the same volume, so its options
may change; `close` removes both. Nothing here decides whether there is an engine:
without one each call fails.
"""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
import uuid
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import docker
from testcontainers.core.container import DockerContainer
from testcontainers.core.labels import LABEL_SESSION_ID, SESSION_ID

from foqs.dev.mariadb_server import PROBE_S
from foqs.dev.mysql9_server import REDO_LOG
from foqs.dev.server_process import ServerProcess
from tests.support import mariadb, zookeeper

ROOT: Final = Path(__file__).resolve().parents[2]
BASE: Final = os.environ.get("BASE_IMAGE", "debian:bookworm-slim")
"""The image of Debian that all images are built on."""
_SOURCES: Final = (".dockerignore", "configs/docker/servers/{kind}.*", "tools/mysql9.sh")
_SIGNALLED: Final = 128
"""A shell's exit code of a process that a signal ended, without the signal."""


def are_wanted() -> bool:
    """Return whether the tests that can take either take servers in containers: make test-containers asks for it."""
    return os.environ.get("TEST_IN_CONTAINERS", "0") not in ("", "0")


@cache
def engine() -> Any:
    """Return the client of the engine that DOCKER_HOST names. Raises docker.errors.DockerException."""
    return docker.from_env(timeout=600)


@cache
def image(kind: str) -> str:
    """Build the image of a kind of server if it is not there, and return its name."""
    sources = sorted(path for pattern in _SOURCES for path in ROOT.glob(pattern.format(kind=kind)))
    text = b"\0".join([BASE.encode(), *(path.read_bytes() for path in sources)])
    name = f"foqs-test-{kind}:{hashlib.sha256(text).hexdigest()[:12]}"
    if not engine().images.list(name):
        arguments = {"BASE": BASE, "CHECK_VALID_UNTIL": check_valid_until()}
        build(f"configs/docker/servers/{kind}.Dockerfile", name, arguments)
    return name


def build(dockerfile: str, name: str, arguments: dict[str, str], context: Path = ROOT) -> None:
    """Build an image of a tree. Raises docker.errors.BuildError."""
    made = engine().images
    made.build(path=str(context), dockerfile=dockerfile, tag=name, buildargs=arguments, rm=True, forcerm=True)


def check_valid_until() -> str:
    """Return whether apt refuses a mirror that was not renewed for long, as apt of this machine does."""
    try:
        command = ["apt-config", "dump", "--format=%v", "Acquire::Check-Valid-Until"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout or "true"
    except FileNotFoundError:
        return "true"


class _ContainerServer(ServerProcess):
    """A server whose process is a container's."""

    kind: str
    data: str
    """The folder of the container that outlives it."""
    _container: Any = None
    _volume: Any = None

    def run_container(self, arguments: Sequence[object]) -> None:
        """Start a container on the server's data. An earlier one must have ended."""
        self._remove_container()
        if self._volume is None:
            name = f"foqs-test-{uuid.uuid4().hex[:12]}"
            self._volume = engine().volumes.create(name, labels={LABEL_SESSION_ID: SESSION_ID})
        made = DockerContainer(image(self.kind), command=[str(argument) for argument in arguments])
        made = made.with_volume_mapping(self._volume.name, self.data, "rw").with_kwargs(network_mode="host")
        self._container = made
        made.start()

    def _remove_container(self) -> None:
        made, self._container = self._container, None
        if made is not None:
            made.stop(delete_volume=False)

    @property
    def _wrapped(self) -> Any:
        """The container as the engine's library has it, its state as it is now."""
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
        if state["Running"]:
            return None
        code = int(state["ExitCode"])
        return _SIGNALLED - code if code > _SIGNALLED else code

    def log_tail(self) -> str:
        return str(self._wrapped.logs(tail=50).decode(errors="replace"))

    @property
    def log(self) -> str:
        return str(self._wrapped.logs().decode(errors="replace"))

    def send_signal(self, number: signal.Signals) -> None:
        if self._container is not None and self.exit_code is None:
            self._wrapped.kill(signal=number.name)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.send_signal(number)
        if self._container is not None:
            self._wrapped.wait(timeout=self.stop_timeout_s)

    def freeze(self) -> None:
        self._wrapped.kill(signal="SIGSTOP")

    def thaw(self) -> None:
        self._wrapped.kill(signal="SIGCONT")

    def close(self) -> None:
        try:
            self._remove_container()
            volume, self._volume = self._volume, None
            if volume is not None:
                volume.remove(force=True)
        finally:
            super().close()

    def remove(self) -> None:
        self.close()


class MariaDb(_ContainerServer, mariadb.MariaDb):
    """See `tests.support.mariadb`; root comes over TCP."""

    kind = "mariadb"
    data = "/var/lib/mysql"

    @property
    def connect_arguments(self) -> dict[str, Any]:
        return {"host": "127.0.0.1", "port": self.port}

    def open_socket(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), PROBE_S)

    def create_data(self) -> None:
        """The image does it."""

    def start(self, *options: str) -> None:
        self.run_container([*self.settings_options(), *options])
        self.wait_until_ready(self.is_ready)


class MySql9(MariaDb):
    """See `tests.support.mysql9`."""

    name = "mysql9"
    kind = "mysql"

    def settings_options(self) -> list[str]:
        return [REDO_LOG, *super().settings_options()]


class ZooKeeper(_ContainerServer, zookeeper.ZooKeeper):
    """See `tests.support.zookeeper`; always alone."""

    kind = "zookeeper"
    data = "/var/lib/zookeeper"

    def stop(self, number: signal.Signals = signal.SIGKILL) -> None:
        super().stop(number)

    def start_process(self) -> None:
        self.run_container([f"{name}={value}" for name, value in self.settings().items()])
