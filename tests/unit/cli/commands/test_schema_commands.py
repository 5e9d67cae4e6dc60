"""Tests of foqs schema on SQLite files, and of the members that keep tables from being contracted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from foqs.cli.commands.schema_commands import _apply
from foqs.cluster.membership import own_versions
from foqs.options.config import Config
from foqs.store.mysql.expected_server import ExpectedServer
from foqs.store.mysql.mysql_store import MysqlStore
from foqs.store.sqlite import sqlite_sql
from shardmgr.documents import MEMBERS, render_member
from shardmgr.layout_changes import create_layout
from shardmgr.model import Member, ShardSpec
from shardmgr.primary import DatabaseServer, LossPolicy, Primary
from shardmgr.primary_document import replace_primary
from shardmgr.registry.port import Registry
from shardmgr.versions import VERSIONS, HostVersions, render_versions
from tests.unit.cli.commands.test_cluster_init import Place, place
from tests.unit.cli.commands.test_item_commands import client, run

__all__ = ["client", "place", "run"]

Run = Callable[..., Result]


def rows_of(result: Result) -> list[dict[str, object]]:
    assert result.exit_code == 0, result.output
    found: list[dict[str, object]] = json.loads(result.stdout)
    return found


def test_files_are_planned_created_and_stable(run: Run, tmp_path: Path) -> None:
    store = ("--store", f"sqlite:{tmp_path}/data")
    planned = rows_of(run("schema", "plan", *store, "-o", "json"))
    assert {row["step"] for row in planned} == {f"{m.number} at open" for m in sqlite_sql.MIGRATIONS}
    assert {row["phase"] for row in rows_of(run("schema", "status", *store, "-o", "json"))} == {"empty"}
    applied = rows_of(run("schema", "apply", *store, "-o", "json"))
    newest = sqlite_sql.MIGRATIONS[-1].number
    assert {(row["phase"], row["version"]) for row in applied} == {("stable", newest)}
    assert rows_of(run("schema", "plan", *store, "-o", "json")) == []
    assert "There is nothing to do." in run("schema", "plan", *store).stderr
    assert "stable  -       -        -\n" in run("schema", "status", *store).stdout


def test_a_file_that_was_created_only_is_shown_as_unfinished(run: Run, tmp_path: Path) -> None:
    store = ("--store", f"sqlite:{tmp_path}/data")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "shard-0.db").touch()
    phases = [row["phase"] for row in rows_of(run("schema", "status", *store, "-o", "json"))]
    assert (phases[0], {*phases[1:]}) == ("creating", {"empty"})


def test_a_contraction_is_confirmed(run: Run, tmp_path: Path) -> None:
    store = ("--store", f"sqlite:{tmp_path}/data")
    asked = run("schema", "apply", *store, "--contract")
    assert (asked.exit_code, "cannot use the shards" in asked.stderr) == (1, True)
    assert run("schema", "apply", *store, "--contract", "--yes").exit_code == 0


@pytest.mark.parametrize("older", ["no versions", "a lower version", "an unreadable entry", "none"])
def test_nothing_is_contracted_while_a_member_is_older(run: Run, place: Place, older: str) -> None:
    own = own_versions()
    versions: dict[str, HostVersions | None] = {
        "no versions": None,
        "a lower version": HostVersions("0.0.9", own.schema - 1, 1, 1),
        "an unreadable entry": own,
        "none": own,
    }

    async def join(registry: Registry) -> None:
        await registry.open()
        for nonce, spoken in (("one", own), ("two", versions[older])):
            if spoken is not None:
                await registry.announce(VERSIONS, nonce, render_versions(spoken))
            entry = render_member(Member(f"host-{nonce}", nonce, "a:1", "default"))
            if (nonce, older) == ("two", "an unreadable entry"):
                entry = b"{}"
            await registry.announce(MEMBERS, nonce, entry)

    config = ("--config", str(place.file))
    assert run("cluster", "init", *config, "--shards", "2", "--yes").exit_code == 0
    asyncio.run(join(place.ensemble.registry(6_000)))
    result = run("schema", "apply", *config, "--contract", "--yes")
    if older == "none":
        assert result.exit_code == 0, result.output
        return
    name = "two" if older == "an unreadable entry" else "host-two"
    assert result.exit_code == 1
    assert f"hosts of an older version are members of the cluster: {name}. " in result.stderr
    hosts = {row["hosts"] for row in rows_of(run("schema", "status", *config, "-o", "json"))}
    assert hosts == {
        {"no versions": f"older, {own.schema}", "a lower version": f"{own.schema}, {own.schema - 1}"}.get(
            older, f"{own.schema}"
        )
    }


def test_tables_are_made_at_the_primary_of_the_entry(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[str, object]] = []

    async def note(store: MysqlStore) -> None:
        opened.append((store._settings.host, store._settings.expected))

    async def prepare(registry: Registry) -> None:
        await registry.open()
        await create_layout(registry, [ShardSpec(0, "main")])
        servers = {name: DatabaseServer(f"r-{name}", number) for name, number in (("a", 11), ("b", 12))}
        await replace_primary(registry, "main", Primary(3, "b", LossPolicy.SEMI_SYNC, servers=servers), None)

    monkeypatch.setattr(MysqlStore, "open", note)
    asyncio.run(prepare(place.ensemble.registry(6_000)))
    database = {"url": "mysql://foqs@db-a/foqs", "servers": "a=db-a:3306, b=db-b:3306", "promoter_user": "promoter"}
    config = Config.model_validate({"cluster": {"zookeeper": "z:1"}, "databases": {"main": database}})
    asyncio.run(_apply(config, contract=False))
    assert opened == [("db-b", ExpectedServer("b", 12, 3, needs_acks=True))]


OWN = own_versions()


@pytest.mark.parametrize(
    ("member", "is_next"),
    [
        (OWN, True),
        (None, True),
        (HostVersions("0.1.5", OWN.schema - 1, OWN.documents, OWN.wire - 1), True),
        (HostVersions("0.3.0", OWN.schema + 1, OWN.documents + 1, OWN.wire + 1), True),
        (HostVersions("0.0.9", OWN.schema - 2, OWN.documents, OWN.wire), False),
        (HostVersions("0.4.0", OWN.schema, OWN.documents, OWN.wire + 2), False),
    ],
)
def test_tables_are_expanded_only_if_no_member_is_more_than_one_version_away(
    run: Run, place: Place, member: HostVersions | None, is_next: bool
) -> None:
    async def join(registry: Registry) -> None:
        await registry.open()
        if member is not None:
            await registry.announce(VERSIONS, "one", render_versions(member))
        await registry.announce(MEMBERS, "one", render_member(Member("host-one", "one", "a:1", "default")))

    config = ("--config", str(place.file))
    assert run("cluster", "init", *config, "--shards", "2", "--yes").exit_code == 0
    asyncio.run(join(place.ensemble.registry(6_000)))
    result = run("schema", "apply", *config)
    if is_next:
        assert result.exit_code == 0, result.output
        return
    assert member is not None
    assert result.exit_code == 1
    assert f"hosts of version {member.program} are members of the cluster" in result.stderr
    assert "no version is skipped" in result.stderr
