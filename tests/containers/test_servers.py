"""MariaDB, MySQL 9 and ZooKeeper in containers behave as those of packages: see `tests.support.containers`."""

from __future__ import annotations

import signal
from pathlib import Path

import pymysql
import pytest
from testcontainers.core.labels import LABEL_SESSION_ID, SESSION_ID

from foqs.dev.server_process import ServerNotAvailable
from tests.support import containers
from tests.support.mysql9 import IN_CONTAINERS

pytestmark = [pytest.mark.containers, pytest.mark.timeout(900)]


@pytest.mark.parametrize("kind", IN_CONTAINERS)
def test_a_killed_database_starts_again_on_its_data_with_other_options(kind: str) -> None:
    server = IN_CONTAINERS[kind]()
    try:
        server.set_up()
        port, database = server.port, server.database()
        server.query(f"CREATE TABLE {database}.t (n INT PRIMARY KEY)")
        server.query(f"INSERT INTO {database}.t VALUES (7)")
        server.kill9()
        assert server.exit_code == -signal.SIGKILL
        assert not server.is_ready()
        server.start("--max-connections=77")
        assert (server.port, server.query(f"SELECT n FROM {database}.t")) == (port, [(7,)])
        assert server.query("SELECT @@max_connections, @@innodb_flush_log_at_trx_commit") == [(77, 1)]
        server.stop()
        assert server.exit_code == 0
    finally:
        server.remove()


@pytest.mark.parametrize("kind", IN_CONTAINERS)
def test_a_database_does_not_run_as_root_and_listens_on_loopback_only(kind: str) -> None:
    server = IN_CONTAINERS[kind]()
    try:
        server.set_up()
        assert Path(f"/proc/{server.pid}").stat().st_uid != 0
        assert server.query("SELECT @@bind_address") == [("127.0.0.1",)]
    finally:
        server.remove()


def test_a_database_that_cannot_start_says_why() -> None:
    server = containers.MariaDb("--no-such-option")
    try:
        with pytest.raises(ServerNotAvailable, match="no-such-option"):
            server.set_up()
    finally:
        server.remove()


def test_a_frozen_database_answers_again_when_it_is_thawed() -> None:
    server = containers.MariaDb()
    try:
        server.set_up()
        server.freeze()
        with pytest.raises(pymysql.OperationalError):
            pymysql.connect(user="root", connect_timeout=1, read_timeout=1, **server.connect_arguments)
        server.thaw()
        assert server.query("SELECT 1") == [(1,)]
    finally:
        server.remove()


def test_a_killed_zookeeper_starts_again_on_its_data() -> None:
    with containers.ZooKeeper() as server:
        with server.client() as client:
            client.create("/kept", b"7")
        server.stop()
        assert server.exit_code == -signal.SIGKILL
        server.start()
        with server.client() as client:
            assert client.get("/kept")[0] == b"7"
        server.stop(signal.SIGTERM)
        assert server.exit_code == -signal.SIGTERM


def test_nothing_is_left_of_a_closed_server() -> None:
    label = f"{LABEL_SESSION_ID}={SESSION_ID}"
    engine = containers.engine()
    before = {volume.name for volume in engine.volumes.list(filters={"label": label})}
    with containers.ZooKeeper():
        during = {volume.name for volume in engine.volumes.list(filters={"label": label})}
        assert len(during - before) == 1
        assert engine.containers.list(filters={"label": label})
    assert {volume.name for volume in engine.volumes.list(filters={"label": label})} == before
    assert not engine.containers.list(all=True, filters={"label": label})
