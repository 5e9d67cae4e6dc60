"""Servers in containers, with a stub of testcontainers that records its calls."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest

from tests.support import cluster, containers


class StubContainer:
    """A stub of `testcontainers.core.container.DockerContainer` and of the container that it wraps."""

    made: list[StubContainer]

    def __init__(self, image: str) -> None:
        self.image = image
        self.calls: list[Any] = []
        self.environment: dict[str, str] = {}
        self.attrs = {"State": {"Pid": 77, "Running": False, "ExitCode": 0}}
        StubContainer.made.append(self)

    def with_bind_ports(self, inner: int, outer: Any) -> Self:
        self.calls.append((inner, outer))
        return self

    def with_env(self, name: str, value: str) -> Self:
        self.environment[name] = value
        return self

    def start(self) -> Self:
        self.calls.append("start")
        self.attrs["State"]["Running"] = True
        return self

    def get_wrapped_container(self) -> Self:
        return self

    def reload(self) -> None:
        pass

    def kill(self, signal: str) -> None:
        self.calls.append(signal)
        self.attrs["State"] |= {"Running": False, "ExitCode": 137}

    def stop(self, timeout: int | None = None) -> None:
        self.calls.append("remove" if timeout is None else "stop")
        self.attrs["State"]["Running"] = False


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[StubContainer]]:
    StubContainer.made = []
    monkeypatch.setitem(
        sys.modules,
        "testcontainers.core.container",
        SimpleNamespace(DockerContainer=StubContainer),
    )
    yield StubContainer.made


def test_zookeeper_is_started_stopped_and_started_again_on_its_port(
    made: list[StubContainer], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(containers.ZooKeeper, "is_ready", lambda self: True)
    with containers.ZooKeeper(tmp_path) as server:
        [container] = made
        assert (container.image, server.pid, server.exit_code) == (containers.ZOOKEEPER_IMAGE, 77, None)
        server.stop(signal.SIGKILL)
        assert server.exit_code == 137
        server.start()
    assert container.calls == [
        (2181, ("127.0.0.1", server.port)), "start", "SIGKILL", "stop", "start", "SIGTERM", "stop", "remove",
    ]  # fmt: skip


def test_mariadb_answers_when_it_greets_over_tcp(made: list[StubContainer], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = containers.MariaDb(tmp_path, listener.getsockname()[1])
        with socket.create_connection(listener.getsockname()):
            first = listener.accept()[0]
        first.close()
        for greeting, answers in ((b"\x40\x00\x00\x00\x0a", True), (b"\x40\x00\x00\x00\xff", False)):
            probe = server.open_socket()
            peer = listener.accept()[0]
            peer.sendall(greeting)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(server, "open_socket", lambda probe=probe: probe)
                assert server.is_ready() is answers
            peer.close()
    assert server.connect_arguments == {"host": "127.0.0.1", "port": server.port}
    assert made == []


def test_the_options_of_a_container_do_not_change(made: list[StubContainer], tmp_path: Path) -> None:
    with pytest.raises(NotImplementedError):
        containers.MariaDb(tmp_path).start("--read-only")


@pytest.mark.parametrize(("installed", "code", "there"), [(True, 0, True), (True, 1, False), (False, 0, False)])
def test_an_engine_needs_the_library_and_a_docker_that_answers(
    monkeypatch: pytest.MonkeyPatch, installed: bool, code: int, there: bool
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if installed else None)
    monkeypatch.setattr("shutil.which", lambda name: name)
    monkeypatch.setattr(subprocess, "run", lambda command, **how: SimpleNamespace(returncode=code))
    assert containers.has_docker() is there


@pytest.mark.parametrize("engine", [True, False])
def test_a_test_cluster_uses_containers_if_there_is_an_engine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, engine: bool
) -> None:
    monkeypatch.setattr(containers, "has_docker", lambda: engine)
    found = cluster.cluster(tmp_path, hosts=1)
    assert isinstance(found.zookeeper, containers.ZooKeeper) is engine
    assert [isinstance(server, containers.MariaDb) for server in found.databases] == [engine, engine]
