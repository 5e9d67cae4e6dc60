"""The kinds of hosts on which every story runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.behaviour import sites, wires
from tests.behaviour.sites import OPTIONS, PATIENT_HOST, Stage, fake_site, host_site, sync_site, tier_site
from tests.behaviour.wires import WireStage, fake_wire, host_wire, tier_wire
from tests.support.mysql9 import running
from tests.support.processes import RestartableHost
from tests.support.virtual_tier import VirtualTier, virtual_tier


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


@pytest.fixture(scope="session")
def tier() -> Iterator[VirtualTier]:
    with virtual_tier(OPTIONS) as started:
        yield started


def _on_server(kind: str, folders: pytest.TempPathFactory) -> Iterator[RestartableHost]:
    with running(kind) as server:
        url = f"mysql://root@127.0.0.1:{server.port}/{server.database()}"
        yield from _running(folders.mktemp(kind), url)


def _running(folder: Path, url: str) -> Iterator[RestartableHost]:
    with RestartableHost(folder, url, OPTIONS, PATIENT_HOST) as host:
        host.start()
        yield host


@pytest.fixture(
    params=[
        "fake",
        "sync",
        "tier",
        pytest.param("sqlite", marks=pytest.mark.process),
        pytest.param("mariadb", marks=[pytest.mark.process, pytest.mark.mysql]),
        # tests/contract shows that its store does what MariaDB's does.
        pytest.param("mysql9", marks=[pytest.mark.process, pytest.mark.mysql, pytest.mark.long]),
    ]
)
def stage(request: pytest.FixtureRequest) -> Stage:
    if request.param == "fake":
        return sites.stage(fake_site)
    if request.param == "sync":
        return sites.stage(sync_site)
    if request.param == "tier":
        tier: VirtualTier = request.getfixturevalue("tier")
        return sites.stage(lambda: tier_site(tier), tier.run)
    host: RestartableHost = request.getfixturevalue(f"{request.param}_host")
    return sites.stage(lambda: host_site(host))


@pytest.fixture(
    params=[
        "fake",
        "tier",
        pytest.param("sqlite", marks=pytest.mark.process),
        pytest.param("mariadb", marks=[pytest.mark.process, pytest.mark.mysql, pytest.mark.long]),
    ]
)
def wire_stage(request: pytest.FixtureRequest) -> WireStage:
    if request.param == "fake":
        return wires.wire_stage(fake_wire)
    if request.param == "tier":
        tier: VirtualTier = request.getfixturevalue("tier")
        return wires.wire_stage(lambda: tier_wire(tier), tier.run)
    host: RestartableHost = request.getfixturevalue(f"{request.param}_host")
    return wires.wire_stage(lambda: host_wire(host))
