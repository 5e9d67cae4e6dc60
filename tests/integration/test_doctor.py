"""The findings of doctor for real servers, ports and files with problems."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from foqs.cli import root
from foqs.cli.doctor.catalog_checks import check_catalog
from foqs.cli.doctor.sqlite_checks import check_files
from foqs.options.config import load
from foqs.store.mysql import mysql_migrations
from foqs.store.sqlite import sqlite_sql
from tests.support.mariadb import MariaDb
from tests.support.ports import free_port
from tests.support.processes import RestartableHost

NEWEST = mysql_migrations.MIGRATIONS[-1].number
NOBODY = 65_534


@pytest.fixture(scope="module")
def mariadb() -> Iterator[MariaDb]:
    server = MariaDb()
    server.start()
    yield server
    server.remove()


class Place:
    """An empty database with a user that cannot create tables."""

    def __init__(self, server: MariaDb, folder: Path) -> None:
        self.server = server
        self.database = server.database()
        self.user = f"run_{self.database}"
        self.password_file = folder / "password"
        self.password_file.write_text("secret")
        self.password_file.chmod(0o600)
        server.query(f"CREATE USER {self.user}@127.0.0.1 IDENTIFIED BY 'secret'")
        self.grant("SELECT, INSERT, UPDATE, DELETE")
        self.environment = {
            "FOQS_STORE__URL": f"mysql://{self.user}@127.0.0.1:{server.port}/{self.database}",
            "FOQS_STORE__PASSWORD_FILE": str(self.password_file),
            "FOQS_STORE__SHARDS": "2",
            "FOQS_SERVER__PORT": "0",
            "FOQS_SERVER__HTTP_PORT": "0",
            "FOQS_COORDINATOR__FILE": str(folder / "coordinator.json"),
        }

    def grant(self, rights: str, tables: str = "*") -> None:
        self.server.query(f"GRANT {rights} ON {self.database}.{tables} TO {self.user}@127.0.0.1")

    def make_tables(self) -> None:
        url = f"mysql://root@localhost/{self.database}?socket={self.server.socket}"
        environment = self.environment | {"FOQS_STORE__URL": url, "FOQS_STORE__PASSWORD_FILE": ""}
        result = CliRunner().invoke(root, ["schema", "apply"], env=environment)
        assert result.exit_code == 0, result.output


@pytest.fixture
def place(mariadb: MariaDb, tmp_path: Path) -> Place:
    return Place(mariadb, tmp_path)


def examine(environment: dict[str, str]) -> tuple[int, dict[str, dict[str, Any]]]:
    """Return the exit code and the worst finding of each check."""
    result = CliRunner().invoke(root, ["doctor", "-o", "json"], env=environment)
    worst: dict[str, dict[str, Any]] = {}
    for row in sorted(json.loads(result.stdout), key=lambda row: ["ok", "warning", "bad"].index(row["state"])):
        worst[row["check"]] = row
    return result.exit_code, worst


def bad(environment: dict[str, str], check: str, found: str, remedy: str) -> None:
    """Check that only this check is bad, and that it contains these words."""
    code, rows = examine(environment)
    assert code == 5
    assert {name for name, row in rows.items() if row["state"] == "bad"} == {check}
    assert found in rows[check]["found"]
    assert remedy in rows[check]["remedy"]


# --------------------------------------------------------------------- MariaDB


@pytest.mark.mysql
def test_a_database_with_the_least_rights_and_all_tables_is_ok(place: Place) -> None:
    place.make_tables()
    code, rows = examine(place.environment)
    assert code == 0
    states = {
        name: rows[name]["state"] for name in ("Store", "Schema", "Grants", "Connections", "Prepared", "Clock", "Files")
    }
    assert set(states.values()) == {"ok"}, rows


@pytest.mark.mysql
def test_an_unusable_database_is_reported_with_the_reason_and_the_remedy(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = socket.getaddrinfo

    def look_up(host: Any, *more: Any, **options: Any) -> Any:
        """Answer in place of a name server, which may be slow or away."""
        if host == "no-such-host.invalid":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return real(host, *more, **options)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    at, database = f"127.0.0.1:{place.server.port}", place.database
    for url, found, remedy in [
        (f"mysql://root@127.0.0.1:{free_port()}/{database}", "Connection refused", "start the server"),
        (f"mysql://root@no-such-host.invalid/{database}", "known", "correct the host"),
        (f"mysql://root@localhost/{database}?socket={tmp_path}/none", "No such file", "start the server"),
        (f"mysql://nobody@{at}/{database}", "Access denied", "store.password_file"),
        (f"mysql://root@{at}/nowhere", "Unknown database", "CREATE DATABASE `nowhere`"),
        (f"mysql://{place.user}@{at}/mysql", "Access denied", "GRANT SELECT, INSERT, UPDATE, DELETE ON `mysql`.*"),
    ]:
        password = str(place.password_file) if place.user in url else ""
        environment = place.environment | {"FOQS_STORE__URL": url, "FOQS_STORE__PASSWORD_FILE": password}
        bad(environment, "Store", found, remedy)
    place.password_file.write_text("wrong")
    bad(place.environment, "Store", "Access denied", "store.password_file")


def test_doctor_distinguishes_a_silent_server_from_a_missing_one(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        environment = {
            "FOQS_STORE__URL": f"mysql://root@127.0.0.1:{silent.getsockname()[1]}/x",
            "FOQS_SERVER__PORT": "0",
            "FOQS_SERVER__HTTP_PORT": "0",
            "FOQS_COORDINATOR__FILE": str(tmp_path / "coordinator.json"),
        }
        bad(environment, "Store", "no answer within 5.0 s", "network")


@contextmanager
def setting(server: MariaDb, name: str, value: str, usual: str) -> Iterator[None]:
    server.query(f"SET GLOBAL {name} = {value}")
    try:
        yield
    finally:
        server.query(f"SET GLOBAL {name} = {usual}")


@pytest.mark.mysql
def test_weak_durability_is_reported(place: Place) -> None:
    place.make_tables()
    with setting(place.server, "innodb_flush_log_at_trx_commit", "2", "1"):
        bad(place.environment, "Store", "innodb_flush_log_at_trx_commit is 2", "configuration file")
        code, rows = examine(place.environment | {"FOQS_STORE__UNSAFE_DURABILITY": "true"})
        assert (code, rows["Store"]["state"]) == (0, "warning")


@pytest.mark.mysql
def test_a_server_with_too_few_prepared_statements_is_reported_with_the_number(place: Place) -> None:
    place.make_tables()
    with setting(place.server, "max_prepared_stmt_count", "3", "16382"):
        code, rows = examine(place.environment)
        assert (code, rows["Prepared"]["state"]) == (0, "warning")
        assert "is 3, but the writers of these shards prepare up to 6" in rows["Prepared"]["found"]
        assert "set it to 6" in rows["Prepared"]["remedy"]
    with setting(place.server, "max_prepared_stmt_count", "6", "16382"):
        _, rows = examine(place.environment)
        assert rows["Prepared"]["state"] == "ok"


@pytest.mark.mysql
def test_a_server_with_too_few_connections_for_the_shards_is_reported_with_the_number(place: Place) -> None:
    place.make_tables()
    usual = str(place.server.query("SELECT @@GLOBAL.max_connections")[0][0])
    many = place.environment | {"FOQS_STORE__SHARDS": "60"}
    for limit, state in (("180", "bad"), ("181", "warning"), ("420", "warning"), ("421", "ok")):
        with setting(place.server, "max_connections", limit, usual):
            _, rows = examine(many)
            assert rows["Connections"]["state"] == state
            assert "60 shards, together 180 to 420" in rows["Connections"]["found"]
    place.server.query(f"GRANT USAGE ON *.* TO {place.user}@127.0.0.1 WITH MAX_USER_CONNECTIONS 9")
    _, rows = examine(place.environment)
    assert rows["Connections"]["state"] == "warning"
    assert "max_user_connections is 9" in rows["Connections"]["found"]


@pytest.mark.mysql
def test_each_missing_grant_is_reported(place: Place) -> None:
    place.make_tables()
    place.server.query(f"REVOKE DELETE ON {place.database}.* FROM {place.user}@127.0.0.1")
    remedy = f"GRANT SELECT, INSERT, UPDATE, DELETE ON `{place.database}`.* TO '{place.user}'"
    bad(place.environment, "Grants", "DELETE command denied", remedy)
    place.grant("DELETE", "foqs_0_item")
    place.grant("DELETE", "foqs_0_key")
    bad(place.environment, "Grants", "foqs_0_topic", remedy)


@pytest.mark.mysql
def test_doctor_asks_for_another_user_to_create_missing_tables(place: Place) -> None:
    bad(place.environment, "Schema", "may not create tables", "foqs schema apply")
    place.grant("CREATE")
    code, rows = examine(place.environment)
    assert (code, rows["Schema"]["state"]) == (0, "ok")
    assert place.server.query(f"SHOW TABLES FROM {place.database}") == []


@pytest.mark.mysql
def test_doctor_distinguishes_older_and_newer_tables(place: Place) -> None:
    place.make_tables()
    versions = f"{place.database}.foqs_schema"
    place.server.query(f"UPDATE {versions} SET version = 99 WHERE shard = 1")
    bad(
        place.environment,
        "Schema",
        f"shard 1 has schema version 99; this program knows versions up to {NEWEST}",
        "run the newer foqs",
    )
    place.server.query(f"DELETE FROM {versions}_steps WHERE shard = 1")
    place.server.query(f"UPDATE {versions} SET version = 2 WHERE shard = 1")
    bad(place.environment, "Schema", "shard 1 has schema version 2, and", "Upgrade")
    place.server.query(f"UPDATE {versions} SET version = {NEWEST - 1} WHERE shard = 1")
    bad(place.environment, "Schema", f"shard 1 has schema version {NEWEST - 1}", "foqs schema apply")
    place.grant("CREATE")
    code, rows = examine(place.environment)
    assert (code, rows["Schema"]["state"]) == (0, "warning")
    assert "make a backup" in rows["Schema"]["remedy"]
    place.server.query(f"INSERT INTO {versions}_steps (shard, expanded, contracted) VALUES (1, {NEWEST}, {NEWEST - 1})")
    code, rows = examine(place.environment)
    assert (code, rows["Schema"]["state"]) == (0, "warning")
    assert "foqs schema apply --contract" in rows["Schema"]["remedy"]


@pytest.mark.mysql
def test_shards_that_no_host_would_serve_are_reported(place: Place) -> None:
    place.make_tables()
    code, rows = examine(place.environment | {"FOQS_STORE__SHARDS": "1"})
    assert (code, rows["Schema"]["state"]) == (0, "warning")
    assert "set store.shards to 2" in rows["Schema"]["remedy"]


@pytest.mark.mysql
@pytest.mark.parametrize(("seconds", "state", "code"), [(-5, "warning", 0), (3_600, "bad", 5)])
def test_clocks_that_disagree_are_reported(place: Place, seconds: int, state: str, code: int) -> None:
    place.make_tables()
    with setting(place.server, "init_connect", f"'SET timestamp = UNIX_TIMESTAMP() + {seconds}'", "''"):
        found, rows = examine(place.environment)
    assert (found, rows["Clock"]["state"]) == (code, state)
    assert ("behind" if seconds < 0 else "ahead of") in rows["Clock"]["found"]
    assert "chrony" in rows["Clock"]["remedy"]


@pytest.mark.mysql
def test_a_read_only_server_is_reported_as_a_replica(place: Place) -> None:
    place.make_tables()
    with setting(place.server, "read_only", "1", "0"):
        bad(place.environment, "Store", "--read-only", "name the primary")


# ----------------------------------------------------------------------- ports


def test_doctor_distinguishes_a_port_taken_by_a_host_from_one_taken_by_another_program(tmp_path: Path) -> None:
    with RestartableHost(tmp_path / "host", "memory:") as host:
        host.start()
        environment = {
            "FOQS_STORE__URL": f"sqlite:{tmp_path}/data",
            "FOQS_SERVER__PORT": str(host.port),
            "FOQS_SERVER__HTTP_PORT": str(host.http_port),
        }
        code, rows = examine(environment)
        assert code == 0
        assert "is served by FOQS, 4 shards" in rows["Calls"]["found"]
        assert "is served by FOQS, ready" in rows["HTTP"]["found"]
        crossed = environment | {"FOQS_SERVER__PORT": str(host.http_port), "FOQS_SERVER__HTTP_PORT": str(host.port)}
        code, rows = examine(crossed)
        assert code == 5
        for check, port in (("Calls", host.http_port), ("HTTP", host.port)):
            assert "is not served by FOQS" in rows[check]["found"]
            assert f"Port {port} on 127.0.0.1 is in use by another process" in rows[check]["remedy"]


def test_doctor_shows_the_journals_of_a_running_host(tmp_path: Path) -> None:
    with RestartableHost(tmp_path / "host", f"sqlite:{tmp_path / 'data'}", {"store.journal": True}) as host:
        host.start()
        result = CliRunner().invoke(root, ["enqueue", "mail", "hello"], env={"FOQS_ADDRESS": host.address})
        assert result.exit_code == 0, result.output
        environment = {
            "FOQS_STORE__URL": f"sqlite:{tmp_path / 'data'}",
            "FOQS_SERVER__PORT": str(host.port),
            "FOQS_SERVER__HTTP_PORT": str(host.http_port),
        }
        _, rows = examine(environment)
        assert rows["Journal"]["state"] == "ok"
        assert rows["Journal"]["found"].startswith("4 shards: ")
        _, rows = examine(environment | {"FOQS_SERVER__HTTP_PORT": "0"})
        assert "Journal" not in rows


# ---------------------------------------------------------------------- SQLite


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the files of a host that has stopped."""
    with RestartableHost(tmp_path / "host", f"sqlite:{tmp_path / 'data'}", {"store.shards": 2}) as host:
        host.start()
        assert host.stop() == 0
    return tmp_path / "data"


def on_files(folder: Path) -> dict[str, str]:
    return {
        "FOQS_STORE__URL": f"sqlite:{folder}",
        "FOQS_STORE__SHARDS": "2",
        "FOQS_SERVER__PORT": "0",
        "FOQS_SERVER__HTTP_PORT": "0",
        "FOQS_CATALOG__FILE": str(folder.parent / "host" / "catalog.json"),
    }


def test_the_files_of_a_host_are_ok_and_are_not_changed(folder: Path) -> None:
    before = sorted(path.name for path in folder.iterdir())
    code, rows = examine(on_files(folder))
    assert code == 0
    assert rows["Schema"]["found"] == f"every shard has version {sqlite_sql.MIGRATIONS[-1].number}"
    assert rows["Files"]["state"] == "ok"
    assert (rows["Catalog"]["state"], ", with 1 namespace" in rows["Catalog"]["found"]) == ("ok", True)
    assert sorted(path.name for path in folder.iterdir()) == before


def test_files_of_a_newer_or_unknown_program_are_reported(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "shard-1.db")) as db:
        db.execute("PRAGMA user_version = 99")
    bad(on_files(folder), "Schema", "shard 1 has schema version 99", "run the newer foqs")
    (folder / "shard-1.db").write_text("something else " * 10)
    bad(on_files(folder), "Schema", "shard-1.db is not a file of FOQS", "move it away")
    (folder / "shard-1.db").unlink()
    with closing(sqlite3.connect(folder / "shard-1.db")) as db:
        db.execute("PRAGMA application_id = 7")
        db.execute("CREATE TABLE theirs (x)")
    bad(on_files(folder), "Schema", "shard-1.db is not a file of FOQS", "move it away")


def test_world_writable_files_are_reported(folder: Path) -> None:
    (folder / "shard-0.db").chmod(0o666)
    bad(on_files(folder), "Files", "shard-0.db", f"chmod o-w {folder}/shard-0.db")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can look as another user")
def test_an_unusable_catalog_is_reported_and_not_changed(folder: Path) -> None:
    path = folder.parent / "host" / "catalog.json"
    good = path.read_text()
    for text, found, remedy in [
        (good[:-9], "catalog.json is damaged: line", "import an export"),
        (good.replace('"format": 1', '"format": "2"'), 'is damaged: format: "2" is not a format', "import an export"),
        (good.replace('"format": 1', '"format": 3'), "a newer version: format: 3 is not a format", "keep the document"),
        (good + " " * 1_000_000, "more than 1000000 bytes", "catalog.bytes_max"),
    ]:
        path.write_text(text)
        bad(on_files(folder), "Catalog", found, remedy)
        assert path.read_text() == text
    path.write_text(good.replace('"0-1022/2"', '"0-1020/2"'))
    code, rows = examine(on_files(folder))
    assert (code, rows["Catalog"]["state"]) == (0, "warning")
    assert "1 key slot of tier" in rows["Catalog"]["found"]


def test_a_catalog_that_cannot_be_replaced_is_reported(folder: Path) -> None:
    config = load(None, on_files(folder) | {"FOQS_CATALOG__FILE": "/catalog.json"})
    os.seteuid(NOBODY)
    try:
        [found] = asyncio.run(check_catalog(config))
    finally:
        os.seteuid(0)
    assert found.state == "bad"
    assert "may not write /" in found.detail
    assert "catalog.file" in found.remedy


def test_files_of_another_user_are_reported(folder: Path) -> None:
    config = load(None, on_files(folder))
    os.seteuid(NOBODY)
    try:
        found = check_files(config)
    finally:
        os.seteuid(0)
    assert found.state == "bad"
    assert "may not read and write" in found.detail
    assert f"chown -R {NOBODY}" in found.remedy


def test_files_that_every_user_may_read_are_reported_unless_their_folder_is_closed(folder: Path) -> None:
    config = load(None, on_files(folder))
    assert check_files(config).state == "ok"
    files = sorted(folder.glob("shard-*.db"))
    for file in files:
        file.chmod(0o644)
    folder.chmod(0o755)
    found = check_files(config)
    assert (found.state, found.remedy) == ("warning", f"chmod 700 {folder}")
    assert str(files[0]) in found.detail
    shared = folder.parent / "shared files"
    shared.mkdir()
    catalog = shared / "catalog.json"
    catalog.touch(0o644)
    elsewhere = load(None, {**on_files(folder), "FOQS_CATALOG__FILE": str(catalog)})
    assert check_files(elsewhere).remedy == f"chmod 700 {folder}; chmod 600 '{catalog}'"
    folder.chmod(0o750)
    assert check_files(config).state == "ok"


def test_a_password_file_that_others_may_read_is_reported(folder: Path, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("secret")
    password.chmod(0o644)
    environment = on_files(folder) | {"FOQS_STORE__PASSWORD_FILE": str(password)}
    bad(environment, "Configuration", "mode 644", f"chmod 600 {password}")


# -------------------------------------------------------------------------- SQS


def sqs_findings(environment: dict[str, str]) -> tuple[int, list[dict[str, Any]]]:
    """Return the exit code and the findings about SQS."""
    result = CliRunner().invoke(root, ["doctor", "-o", "json"], env=environment)
    return result.exit_code, [row for row in json.loads(result.stdout) if row["check"] == "SQS"]


def test_doctor_examines_the_port_of_sqs_if_it_is_on(tmp_path: Path) -> None:
    sqs_port = free_port()
    environment = {
        "FOQS_STORE__URL": f"sqlite:{tmp_path}/data",
        "FOQS_SERVER__PORT": "0",
        "FOQS_SERVER__HTTP_PORT": "0",
        "FOQS_CATALOG__FILE": str(tmp_path / "host" / "catalog.json"),
    }
    assert sqs_findings(environment) == (0, [])
    environment |= {"FOQS_SERVER__SQS_PORT": str(sqs_port), "FOQS_NAMESPACE__PAYLOAD_BYTES_MAX": "1114112"}
    code, [port] = sqs_findings(environment)
    assert (code, port["state"], "is free" in port["found"]) == (0, "ok", True)
    with RestartableHost(tmp_path / "host", "memory:", {"server.sqs_port": sqs_port}) as host:
        host.start()
        code, [port] = sqs_findings(environment)
        assert (code, port["found"]) == (0, f"http://127.0.0.1:{sqs_port} is served by FOQS")
        for other in (host.port, host.http_port):
            code, [port] = sqs_findings(environment | {"FOQS_SERVER__SQS_PORT": str(other)})
            assert (code, port["state"], "is not served by FOQS" in port["found"]) == (5, "bad", True)


def test_doctor_names_short_messages_and_accounts_without_a_namespace(folder: Path) -> None:
    environment = on_files(folder) | {"FOQS_SERVER__SQS_PORT": "0"}
    code, [_, size] = sqs_findings(environment)
    assert (code, size["state"]) == (0, "warning")
    assert "payload_bytes_max to 1114112" in size["remedy"]
    config = folder.parent / "sqs.toml"
    config.write_text(
        '[namespace]\npayload_bytes_max = 1114112\n[sqs.accounts]\n111111111111 = "absent"\n"r1:111111111111" = "gone"\n'
    )
    code, [_, missing] = sqs_findings(environment | {"FOQS_CONFIG": str(config)})
    assert (code, missing["state"]) == (5, "bad")
    assert "111111111111 (absent), r1:111111111111 (gone)" in missing["found"]
