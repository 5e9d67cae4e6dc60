"""The stores of a host's shards, made from its configuration."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from foqs.options.config import Config
from foqs.runtime.clock import SystemClock
from foqs.store.factories import mysql_settings, shard_store_factory
from foqs.store.journaled.journaled_store import JournaledStore
from foqs.store.mysql.expected_server import ExpectedServer
from foqs.store.port import StoreUnusable
from foqs.store.primary_servers import promoter_servers, settings_of_primary
from foqs.store.sqlite.sqlite_store import SqliteStore
from shardmgr.primary import DatabaseServer, LossPolicy, Primary


def test_a_shard_of_a_cluster_is_in_the_database_that_its_layout_names(tmp_path: Path) -> None:
    config = Config.model_validate(
        {"cluster": {"zookeeper": "z:1"}, "databases": {name: {"url": f"sqlite:{tmp_path / name}"} for name in "ab"}}
    )
    open_store = shard_store_factory(config, SystemClock())
    for name in "ab":
        store = open_store(3, name, None)
        assert isinstance(store, JournaledStore)
        assert isinstance(store.inner, SqliteStore)
        assert store.inner._file.path.parent == tmp_path / name
    with pytest.raises(StoreUnusable, match=r"'c'.*add \[databases.c\]"):
        open_store(3, "c", None)


def test_a_shard_is_at_the_primary_of_the_entry_of_its_database() -> None:
    url = "mysql://foqs@nowhere/foqs"
    database = {"url": url, "servers": "a=db-a:3306, b=[::1]:3307", "promoter_user": "promoter"}
    config = Config.model_validate({"cluster": {"zookeeper": "z:1"}, "databases": {"main": database}})
    servers = {name: DatabaseServer(f"r-{name}", number) for name, number in (("a", 11), ("b", 12), ("c", 13))}
    entry = Primary(3, "b", LossPolicy.SEMI_SYNC, servers=servers)
    open_store = shard_store_factory(config, SystemClock())
    store = open_store(3, "main", entry)
    assert isinstance(store, JournaledStore)
    settings = settings_of_primary(config, "main", mysql_settings(config, "main"), entry)
    assert (settings.user, settings.host, settings.port, settings.database) == ("foqs", "::1", 3307, "foqs")
    assert settings.expected == ExpectedServer("b", 12, 3, needs_acks=True)
    with pytest.raises(StoreUnusable, match=r"is c, .*add it to databases.main.servers"):
        open_store(3, "main", replace(entry, server="c"))
    access = promoter_servers(config, "main", mysql_settings(config, "main"))._accesses["a"]
    assert (access.source, access.user, access.settings.user) == (("db-a", 3306), "replica_a", "promoter")


def test_a_standalone_host_has_one_database(tmp_path: Path) -> None:
    config = Config.model_validate({"store": {"url": f"sqlite:{tmp_path}"}})
    store = shard_store_factory(config, SystemClock())(0, "", None)
    assert isinstance(store, JournaledStore)
    assert isinstance(store.inner, SqliteStore)
