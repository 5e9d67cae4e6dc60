"""The stores of a host's shards, made from its configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from foqs.options.config import Config
from foqs.runtime.clock import SystemClock
from foqs.store.factories import shard_store_factory
from foqs.store.journaled.journaled_store import JournaledStore
from foqs.store.port import StoreUnusable
from foqs.store.sqlite.sqlite_store import SqliteStore


def test_a_shard_of_a_cluster_is_in_the_database_that_its_layout_names(tmp_path: Path) -> None:
    config = Config.model_validate(
        {"cluster": {"zookeeper": "z:1"}, "databases": {name: {"url": f"sqlite:{tmp_path / name}"} for name in "ab"}}
    )
    open_store = shard_store_factory(config, SystemClock())
    for name in "ab":
        store = open_store(3, name)
        assert isinstance(store, JournaledStore)
        assert isinstance(store.inner, SqliteStore)
        assert store.inner._file.path.parent == tmp_path / name
    with pytest.raises(StoreUnusable, match=r"'c'.*add \[databases.c\]"):
        open_store(3, "c")


def test_a_standalone_host_has_one_database(tmp_path: Path) -> None:
    config = Config.model_validate({"store": {"url": f"sqlite:{tmp_path}"}})
    store = shard_store_factory(config, SystemClock())(0, "")
    assert isinstance(store, JournaledStore)
    assert isinstance(store.inner, SqliteStore)
