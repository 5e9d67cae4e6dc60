"""Tests of doctor's checks of the cluster at an address, with a client that records its calls."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from click.testing import Result

from foqs_client import Host, PermissionDenied, Routing, Shard, Unreachable
from tests.unit.cli.commands.test_item_commands import FakeClient, client, run

__all__ = ["client", "run"]

Run = Callable[..., Result]

HOST = Host("10.0.0.1", 7411, "eu", "default", 2, False, None, "1", "host1", "ab", 1)
OTHER = replace(HOST, host="10.0.0.2", name="host2")
OWNED = Shard(3, "default", ("10.0.0.1", 7411), 4, "owned", None, None, None, "host1", "db1", 1, False, None)
FREE = Shard(5, "default", None, 6, "free", None, None, "no host fits", None, "db2", 2, False, None)


def rows(result: Result) -> dict[str, dict[str, Any]]:
    return {row["check"]: row for row in json.loads(result.stdout)}


def test_doctor_looks_at_the_cluster_that_the_environment_names(run: Run, client: FakeClient) -> None:
    client.answers["routing"] = Routing(1, [HOST, OTHER], [OWNED])
    result = run("doctor", "-o", "json", FOQS_ADDRESS="foqs://10.0.0.9:7411,10.0.0.1")
    found = rows(result)
    assert result.exit_code == 0, found
    assert {address for address, _, _ in client.opened} == {
        "foqs://10.0.0.9:7411,10.0.0.1",
        "foqs://10.0.0.1:7411",
        "foqs://10.0.0.2:7411",
        "foqs://10.0.0.9:7411",
    }
    assert "foqs://10.0.0.9:7411,10.0.0.1" in found["Cluster"]["found"]
    assert {row["state"] for row in found.values()} == {"ok"}
    assert not {"Configuration", "Data folder", "Store", "Calls"} & set(found)


def test_doctor_says_which_shards_of_the_cluster_are_not_served_and_why(run: Run, client: FakeClient) -> None:
    client.answers["routing"] = Routing(1, [HOST], [OWNED, FREE])
    result = run("doctor", "-o", "json", "--address", "foqs://10.0.0.1")
    assert result.exit_code == 5
    shards = rows(result)["Cluster shards"]
    assert (shards["state"], shards["found"]) == ("bad", "1 of 2 are not served: shard 5 (free: no host fits)")
    assert shards["remedy"]


def test_doctor_warns_of_a_shard_that_has_used_most_of_its_epochs(run: Run, client: FakeClient) -> None:
    client.answers["routing"] = Routing(1, [HOST], [replace(OWNED, epoch=943_717)])
    assert "Epochs" not in rows(run("doctor", "-o", "json", "--address", "foqs://10.0.0.1"))
    client.answers["routing"] = Routing(1, [HOST], [OWNED, replace(OWNED, shard=4, epoch=943_719)])
    found = rows(run("doctor", "-o", "json", "--address", "foqs://10.0.0.1"))["Epochs"]
    assert found["state"] == "warning"
    assert found["found"] == "1 shard has used most of 1,048,575 epochs: shard 4 (943,719)"


def test_doctor_says_which_hosts_of_the_cluster_cannot_be_reached(run: Run, client: FakeClient) -> None:
    client.answers["routing"] = Routing(1, [HOST, OTHER], [OWNED])
    reached = client.connect

    def connect(address: str, namespace: str, timeout_ms: int) -> FakeClient:
        if "10.0.0.2" in address:
            raise Unreachable("no route")
        return reached(address, namespace, timeout_ms)

    client.connect = connect  # type: ignore[method-assign]
    result = run("doctor", "-o", "json", "--address", "foqss://10.0.0.1:7000")
    hosts = rows(result)["Cluster hosts"]
    assert result.exit_code == 5
    assert "host2 (10.0.0.2:7411): no route" in hosts["found"]
    assert "foqss://10.0.0.1:7411" in {address for address, _, _ in client.opened}


def test_doctor_says_that_nothing_answers_at_the_address(run: Run, client: FakeClient) -> None:
    client.answers["connect"] = Unreachable("no connection")
    result = run("doctor", "-o", "json", "--address", "foqs://10.0.0.1")
    assert result.exit_code == 5
    assert rows(result)["Cluster"]["state"] == "bad"
    client.answers["connect"] = PermissionDenied("not you")
    refused = rows(run("doctor", "-o", "json", "--address", "foqs://10.0.0.1"))["Cluster"]
    assert (refused["state"], refused["found"]) == ("bad", "foqs://10.0.0.1 answers PERMISSION_DENIED: not you")
    assert "--token-file" in refused["remedy"]


def test_doctor_says_that_an_address_cannot_be_read(run: Run) -> None:
    result = run("doctor", "-o", "json", "--address", "10.0.0.1")
    assert (result.exit_code, rows(result)["Cluster"]["state"]) == (5, "bad")


def test_doctor_with_a_configuration_and_an_address_looks_at_both(run: Run, client: FakeClient, tmp_path: Path) -> None:
    client.answers["routing"] = Routing(1, [HOST], [OWNED])
    file = tmp_path / "foqs.toml"
    file.write_text(f'[store]\nurl = "sqlite:{tmp_path}/data"\n[server]\nport = 0\nhttp_port = 0\n')
    found = rows(run("doctor", "-o", "json", "--config", str(file), FOQS_ADDRESS="foqs://10.0.0.1"))
    assert {"Configuration", "Data folder", "Cluster", "Cluster shards"} <= set(found)
