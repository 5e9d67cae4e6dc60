"""Tests of the commands for hosts and shards, with a client that records its calls."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from click.testing import Result

from foqs_client import Host, Routing, Shard
from tests.unit.cli.commands.test_item_commands import FakeClient, client, run

__all__ = ["client", "run"]

Run = Callable[..., Result]

HOST = Host("10.0.0.1", 7411, "eu", "default", 2, True, None, "1", "host1", "ab", 1)
OWNED = Shard(3, "default", ("10.0.0.1", 7411), 4, "owned", None, None, None, "host1", "db1", 1, False, None)
FREE = Shard(5, "default", None, 6, "free", None, None, "no host fits", None, "db2", 2, True, "host9")


def test_cluster_status_as_json_has_hosts_and_shards_with_owner_and_epoch(run: Run, client: FakeClient) -> None:
    client.answers["routing"] = Routing(1, [HOST], [OWNED, FREE])
    found = json.loads(run("cluster", "status", "-o", "json").stdout)
    assert set(found) == {"hosts", "shards"}
    [host] = found["hosts"]
    assert (host["name"], host["address"], host["draining"]) == ("host1", "10.0.0.1:7411", True)
    assert [(s["shard"], s["owner"], s["owner_address"], s["epoch"], s["state"]) for s in found["shards"]] == [
        (3, "host1", "10.0.0.1:7411", 4, "owned"),
        (5, None, None, 6, "free"),
    ]


def test_cluster_status_for_people_says_what_is_wrong(run: Run, client: FakeClient) -> None:
    client.answers["routing"] = Routing(1, [HOST], [OWNED, FREE])
    result = run("cluster", "status")
    assert "drained" in result.stdout
    assert "accepts no new items; moved to host9; no host fits" in result.stdout
    assert "1 of 2 shards is not served." in result.stderr


def test_hosts_of_the_same_name_are_pointed_out(run: Run, client: FakeClient) -> None:
    client.answers |= {"routing": Routing(1, [HOST, HOST], []), "list_hosts": [HOST, HOST]}
    for command in (("cluster", "status"), ("host", "list")):
        assert "named host1" in run(*command).stderr
    client.answers |= {"routing": Routing(1, [HOST], []), "list_hosts": [HOST]}
    for command in (("cluster", "status"), ("host", "list")):
        assert "named host1" not in run(*command).stderr


def test_a_host_without_a_name_is_shown_by_its_address(run: Run, client: FakeClient) -> None:
    client.answers["routing"] = Routing(1, [Host("::1", 7, None, None, 1, False, None, None)], [])
    assert json.loads(run("cluster", "status", "-o", "json").stdout)["hosts"][0]["name"] == "[::1]:7"


def test_a_shard_is_moved_to_a_host_or_anywhere_and_not_both(run: Run, client: FakeClient) -> None:
    client.answers["move_shard"] = None
    assert run("shard", "move", "3", "host2").exit_code == 0
    assert run("shard", "move", "3", "--anywhere").exit_code == 0
    assert client.calls == [("move_shard", (3, "host2"), {}), ("move_shard", (3, None), {})]
    for wrong in (["3"], ["3", "host2", "--anywhere"], ["-1", "host2"], ["x", "host2"]):
        assert run("shard", "move", *wrong).exit_code == 2


def test_shard_is_removed_only_after_confirmation(run: Run, client: FakeClient) -> None:
    client.answers["remove_shard"] = None
    assert run("shard", "remove", "3", stdin="n\n").exit_code == 1
    assert client.calls == []
    assert run("shard", "remove", "3", "--force", stdin="y\n").exit_code == 0
    assert client.calls == [("remove_shard", (3,), {"force": True})]


def test_shard_add_passes_all_options(run: Run, client: FakeClient) -> None:
    client.answers["add_shard"] = None
    assert run("shard", "add", "8", "--database", "db1", "--weight", "3", "--region", "eu").exit_code == 0
    assert client.calls == [("add_shard", (8, "db1"), {"tier": None, "weight": 3, "region": "eu"})]
    assert run("shard", "add", "8").exit_code == 2


@pytest.mark.parametrize("arguments", [(), ("--insecure-listen",)])
def test_a_host_is_not_started_without_its_configuration(run: Run, arguments: tuple[str, ...]) -> None:
    result = run("host", *arguments)
    assert result.exit_code == 2
    assert "--config" in result.stderr


def test_host_list_starts_no_host(run: Run, client: FakeClient) -> None:
    client.answers["list_hosts"] = [HOST]
    result = run("host", "list", FOQS_CONFIG="/does/not/exist")
    assert result.exit_code == 0
    assert "host1" in result.stdout
