"""Which tests take servers in containers. The servers themselves are tested in tests/containers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import cluster, containers


@pytest.mark.parametrize(("value", "wanted"), [("1", True), ("0", False), ("", False), (None, False)])
def test_a_test_cluster_uses_containers_if_they_are_wanted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: str | None, wanted: bool
) -> None:
    if value is None:
        monkeypatch.delenv("TEST_IN_CONTAINERS", raising=False)
    else:
        monkeypatch.setenv("TEST_IN_CONTAINERS", value)
    found = cluster.cluster(tmp_path, hosts=1)
    assert isinstance(found.zookeeper, containers.ZooKeeper) is wanted
    assert [isinstance(server, containers.MariaDb) for server in found.databases] == [wanted, wanted]
    found.close()


@pytest.mark.parametrize(("output", "value"), [("false", "false"), ("", "true"), (None, "true")])
def test_images_are_built_with_the_machine_s_choice_of_mirrors(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, output: str | None, value: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if output is not None:
        (tmp_path / "apt-config").write_text(f"#!/bin/sh\nprintf '%s' '{output}'\n")
        (tmp_path / "apt-config").chmod(0o755)
    assert containers.check_valid_until() == value
