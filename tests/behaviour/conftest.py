"""The kinds of hosts on which every story runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.behaviour.sites import OPTIONS, Open, fake_site, host_site, sync_site
from tests.behaviour.wires import OpenWire, fake_wire, host_wire
from tests.support.mysql9 import running
from tests.support.processes import RestartableHost


@pytest.fixture(scope="session")
def sqlite_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestartableHost]:
    folder = tmp_path_factory.mktemp("sqlite")
    yield from _running(folder, f"sqlite:{folder / 'data'}")


@pytest.fixture(scope="session")
def mariadb_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestartableHost]:
    yield from _on_server("mariadb", tmp_path_factory)


@pytest.fixture(scope="session")
def mysql9_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestartableHost]:
    yield from _on_server("mysql9", tmp_path_factory)


def _on_server(kind: str, folders: pytest.TempPathFactory) -> Iterator[RestartableHost]:
    with running(kind) as server:
        url = f"mysql://root@127.0.0.1:{server.port}/{server.database()}"
        yield from _running(folders.mktemp(kind), url)


def _running(folder: Path, url: str) -> Iterator[RestartableHost]:
    with RestartableHost(folder, url, OPTIONS) as host:
        host.start()
        yield host


@pytest.fixture(
    params=[
        "fake",
        "sync",
        pytest.param("sqlite", marks=pytest.mark.process),
        pytest.param("mariadb", marks=[pytest.mark.process, pytest.mark.mysql]),
        pytest.param("mysql9", marks=[pytest.mark.process, pytest.mark.mysql]),
    ]
)
def open_site(request: pytest.FixtureRequest) -> Open:
    if request.param == "fake":
        return fake_site
    if request.param == "sync":
        return sync_site
    host: RestartableHost = request.getfixturevalue(f"{request.param}_host")
    return lambda: host_site(host)


@pytest.fixture(
    params=[
        "fake",
        pytest.param("sqlite", marks=pytest.mark.process),
        pytest.param("mariadb", marks=[pytest.mark.process, pytest.mark.mysql]),
    ]
)
def open_wire(request: pytest.FixtureRequest) -> OpenWire:
    if request.param == "fake":
        return fake_wire
    host: RestartableHost = request.getfixturevalue(f"{request.param}_host")
    return lambda: host_wire(host)
