"""A host whose database user has only the rights that the runbook names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pymysql
import pytest
from click.testing import CliRunner

from foqs.cli import root
from foqs_client import Client, Item
from tests.support.aio import run
from tests.support.history import History, machine_clock_ms
from tests.support.load_run import check_run, stop_and_drain
from tests.support.mariadb import MariaDb
from tests.support.poll import until
from tests.support.processes import RestartableHost
from tests.support.runbook import blocks
from tests.support.tables import in_mariadb
from tests.support.workload import Load

pytestmark = [pytest.mark.process, pytest.mark.mysql]


@pytest.fixture(scope="module")
def server() -> Iterator[MariaDb]:
    """A server after the statements of the runbook."""
    mariadb = MariaDb()
    mariadb.start()
    for block in blocks("SQL grants", "sql"):
        for statement in block.split(";\n"):
            if statement.strip():
                mariadb.query(statement.replace("10.%", "127.0.0.1"))
    yield mariadb
    mariadb.remove()


def url(server: MariaDb, user: str) -> str:
    return f"mysql://{user}@127.0.0.1:{server.port}/foqs"


@pytest.fixture
def options(tmp_path: Path) -> dict[str, str]:
    return {"store.password_file": password(tmp_path, "foqs", "secret-2")}


def password(folder: Path, user: str, secret: str) -> str:
    file = folder / f"{user}.password"
    file.write_text(secret)
    file.chmod(0o600)
    return str(file)


def test_a_host_with_the_least_rights_does_everything(server: MariaDb, options: dict[str, str], tmp_path: Path) -> None:
    history = History(machine_clock_ms, source="load")

    async def work(old: RestartableHost, new: RestartableHost) -> bool:
        load = Load(f"{old.address},127.0.0.1:{new.port}", history, seed=11)
        load.start()
        await load.acked(100)
        old.kill9()
        new.start()
        await load.acked(100)
        return await stop_and_drain(load, new, history)

    with RestartableHost(tmp_path / "new", url(server, "foqs"), options) as new:
        new.launch()
        assert new.wait_for_exit() == 1
        assert "run foqs schema apply as a user with that right" in new.log
        assert server.query("SHOW TABLES FROM foqs") == []
        made = CliRunner().invoke(
            root,
            [
                "schema",
                "apply",
                "--config",
                str(new.config),
                "--store",
                url(server, "foqs_schema"),
                "--password-file",
                password(tmp_path, "schema", "secret-1"),
            ],
        )
        assert made.exit_code == 0, made.output
        with RestartableHost(tmp_path / "old", url(server, "foqs"), options) as old:
            old.start()
            drained = run(work(old, new), timeout=100)
        doctor = CliRunner().invoke(root, ["doctor", "--config", str(new.config)])
        assert doctor.exit_code == 0, doctor.output
        assert new.stop() == 0
        check_run(history, in_mariadb(server, "foqs"), drained)


def test_a_takeover_with_the_least_rights_ends_the_frozen_owners_connection(
    server: MariaDb, options: dict[str, str], tmp_path: Path
) -> None:
    CliRunner().invoke(
        root,
        ["schema", "apply", "--store", url(server, "foqs_schema")],
        env={"FOQS_STORE__PASSWORD_FILE": password(tmp_path, "schema", "secret-1")},
    )
    with (
        RestartableHost(tmp_path / "old", url(server, "foqs"), options | {"store.shards": 1}) as old,
        RestartableHost(tmp_path / "new", url(server, "foqs"), options | {"store.shards": 1}) as new,
    ):
        old.start()
        before = owner_connection(server)
        old.freeze()
        new.start()
        until(lambda: not is_open(server, before), "the former owner's connection is closed")
        old.thaw()
        assert old.wait_for_exit() == 1
        assert "was taken over by another host" in old.log

        async def work() -> None:
            async with Client(new.address) as client:
                [made] = await client.enqueue([Item("t", b"x")])
                made.require()

        run(work())
        assert new.stop() == 0


def test_the_user_of_a_host_can_neither_create_tables_nor_see_others(server: MariaDb) -> None:
    with closing(
        pymysql.connect(host="127.0.0.1", port=server.port, user="foqs", password="secret-2", database="foqs")
    ) as connection:
        for statement in ("CREATE TABLE x (y INT)", "DROP TABLE foqs_schema", "SELECT * FROM mysql.user"):
            with pytest.raises(pymysql.err.OperationalError, match="denied"):
                connection.cursor().execute(statement)


def owner_connection(server: MariaDb) -> int:
    [(number,)] = server.query("SELECT connection FROM foqs.foqs_0_owner")
    return int(number)


def is_open(server: MariaDb, connection: int) -> bool:
    return bool(server.query("SELECT 1 FROM information_schema.PROCESSLIST WHERE ID = %s", connection))
