"""The commands of an outbox over a file of SQLite. The relay itself runs in tests/integration/test_docs_outbox.py."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from click.testing import Result

from foqs.cli.commands import relay_run
from foqs.cli.doctor import outbox_checks
from foqs_client import Item
from foqs_client.errors import Unreachable
from foqs_client.outbox import enqueue
from foqs_client.outbox.outbox_sql import Dialect
from foqs_client.outbox.relay_pauses import RelayPauses
from tests.unit.cli.commands.test_item_commands import FakeClient, client, run

__all__ = ["client", "run"]

Run = Callable[..., Result]

STANDING_RELAY = """
import asyncio
import threading

from foqs_client.outbox.outbox_connection import OutboxConnection
from foqs_client.outbox.outbox_sql import Dialect
from foqs_client.outbox.relay_loop import Relay
from foqs_client.outbox.relay_tables import RelayTables
from foqs_client.outbox.until_signal import run_until_signal


def connect():
    print("it stands", flush=True)
    threading.Event().wait()


class Queue:
    async def keys_until_ms(self):
        return 1


async def main():
    tables = RelayTables(OutboxConnection(connect, Dialect.SQLITE), "a" * 32)
    await run_until_signal(Relay(tables, Queue()), "shop")


asyncio.run(main())
"""


@pytest.fixture
def outbox(tmp_path: Path, run: Run) -> Iterator[sqlite3.Connection]:
    """An outbox with a waiting row and three parked ones, of which the third may be queued."""
    path = tmp_path / "shop.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE orders (id INTEGER)")
    assert run("relay", "tables", "--create", "--database", f"sqlite:///{path}").exit_code == 0
    enqueue(connection, [Item("mail", f"row {number}".encode()) for number in range(1, 5)])
    columns = ", ".join(name for _, name, *_ in connection.execute("PRAGMA table_info(foqs_outbox)"))
    connection.execute(
        f"INSERT INTO foqs_parked ({columns}, reason, may_be_queued) "
        f"SELECT {columns}, 'too long', id = 4 FROM foqs_outbox WHERE id > 1"
    )
    connection.execute("DELETE FROM foqs_outbox WHERE id > 1")
    connection.execute("INSERT INTO foqs_relay VALUES (1, 2, 'a', 7, '')")
    connection.commit()
    yield connection
    connection.close()


@pytest.fixture
def ask(outbox: sqlite3.Connection, tmp_path: Path, run: Run) -> Run:
    return lambda *arguments: run("relay", *arguments, "--database", f"sqlite:///{tmp_path / 'shop.db'}")


def verdicts(outbox: sqlite3.Connection) -> list[tuple[int, str | None]]:
    return outbox.execute("SELECT id, verdict FROM foqs_parked ORDER BY id").fetchall()


def test_status_says_that_a_relay_works_if_it_writes_a_round(
    outbox: sqlite3.Connection, ask: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_round(_seconds: float) -> None:
        with outbox:
            outbox.execute("UPDATE foqs_relay SET round = round + 1")

    monkeypatch.setattr("foqs_client.outbox.relay_owner.time.sleep", write_round)
    result = ask("status", "-o", "json")

    assert result.exit_code == 0, result.stderr
    [shown] = json.loads(result.stdout)
    rows = shown.pop("parked_rows")
    assert shown.pop("oldest_ms") >= 0
    assert shown == {"rows": 1, "oldest_id": 1, "parked": 3, "resent": 0, "epoch": 2, "round": 8, "relay_works": True}
    assert [(row["id"], row["payload"], row["may_be_queued"]) for row in rows] == [
        (2, "row 2", False),
        (3, "row 3", False),
        (4, "row 4", True),
    ]


def test_status_fails_if_no_relay_works(ask: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foqs_client.outbox.relay_owner.time.sleep", lambda _seconds: None)
    result = ask("status")

    assert result.exit_code == 5
    assert "too long" in result.stdout


def test_a_row_that_may_be_queued_is_resent_only_if_it_may_double(outbox: sqlite3.Connection, ask: Run) -> None:
    result = ask("resend", "2", "4", "9")

    assert result.exit_code == 2
    assert "may make a second item" in result.stderr
    assert "2 of 3 failed, at places 2 to 3" in result.stderr
    assert verdicts(outbox) == [(2, "resend"), (3, None), (4, None)]
    assert ask("resend", "4", "--may-double").exit_code == 0
    assert verdicts(outbox) == [(2, "resend"), (3, None), (4, "resend")]


def test_an_outbox_that_is_named_before_the_command_is_the_one_that_it_acts_on(
    outbox: sqlite3.Connection, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOQS_OUTBOX_DATABASE", f"sqlite:///{tmp_path / 'other.db'}")
    monkeypatch.setenv("FOQS_OUTBOX_PREFIX", "other_")
    named = ["--database", f"sqlite:///{tmp_path / 'shop.db'}", "--prefix", "foqs_"]
    result = run("relay", *named, "drop", "2")

    assert result.exit_code == 0, result.stderr
    assert f"foqs_outbox in sqlite:///{tmp_path / 'shop.db'}" in result.stderr
    assert verdicts(outbox) == [(3, None), (4, None)]
    assert run("relay", "--database", "sqlite:////nowhere/shop.db", "resend", "3", *named).exit_code == 0
    assert verdicts(outbox) == [(3, "resend"), (4, None)]


def test_a_row_that_is_being_sent_again_is_not_dropped(outbox: sqlite3.Connection, ask: Run) -> None:
    ask("resend", "2")
    result = ask("drop", "--all", "--yes", "-o", "json")

    assert json.loads(result.stdout) == [{"id": 3, "error": None}, {"id": 4, "error": None}]
    assert verdicts(outbox) == [(2, "resend")]
    assert "wait for its outcome" in ask("drop", "2").stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["-o", "json", "status"], "--output before status has no effect"),
        (["resend"], "Name rows"),
        (["drop", "2", "--all", "--yes"], "Name rows"),
        (["status", "--prefix", "none_"], "foqs relay tables --create"),
        (["status", "--prefix", "x;"], "cannot begin a table's name"),
    ],
)
def test_what_is_wrong_is_one_sentence(ask: Run, arguments: list[str], sentence: str) -> None:
    result = ask(*arguments)

    assert result.exit_code in (2, 3)
    assert sentence in result.stderr


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        (None, "--database URL"),
        ("shop.db", "this is no URL"),
        ("oracle://x/y", "has no outbox"),
        ("mysql://host", "names no database"),
        ("mysql://host/shop?colour=red", "colour is no option"),
        ("sqlite:////nowhere/shop.db", "cannot be read"),
    ],
)
def test_a_database_that_cannot_be_used_is_named(run: Run, url: str | None, sentence: str) -> None:
    result = run("relay", "status", *([] if url is None else ["--database", url]))

    assert result.exit_code in (2, 3)
    assert sentence in result.stderr


def test_the_tables_are_shown_as_sql_for_the_database(run: Run) -> None:
    shown = run("relay", "tables", "--database", "postgresql+psycopg://shop:secret@db/shop", "--prefix", "shop_").stdout

    assert "CREATE TABLE IF NOT EXISTS shop_outbox" in shown
    assert "GENERATED BY DEFAULT AS IDENTITY" in shown


def test_doctor_says_what_is_wrong_with_an_outbox(
    outbox: sqlite3.Connection, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foqs_client.outbox.relay_owner.time.sleep", lambda _seconds: None)
    with outbox:
        outbox.execute("UPDATE foqs_outbox SET created_ms = created_ms - 3600000")
    result = run("doctor", "--outbox", f"sqlite:///{tmp_path / 'shop.db'}", "-o", "json")

    assert result.exit_code == 5
    assert [(row["state"], row["found"].partition(" 1.0h")[0]) for row in json.loads(result.stdout)] == [
        ("bad", "no relay works; 1 row in the outbox"),
        ("warning", "row 1 waits for"),
        ("warning", "3 rows are parked"),
    ]


def test_doctor_warns_of_an_inbox_that_nobody_prunes(
    outbox: sqlite3.Connection, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foqs_client.outbox.relay_owner.time.sleep", lambda _seconds: None)
    for age_ms, warnings in ((13 * 86_400_000, 0), (15 * 86_400_000, 1)):
        with outbox:
            outbox.execute("DELETE FROM foqs_inbox")
            outbox.execute("INSERT INTO foqs_inbox (delivery, token) VALUES ('1/0-1', 5)")
            outbox.execute("UPDATE foqs_inbox SET done_ms = done_ms - ?", (age_ms,))
        result = run("doctor", "--outbox", f"sqlite:///{tmp_path / 'shop.db'}", "-o", "json")
        assert sum("the oldest row of the inbox" in row["found"] for row in json.loads(result.stdout)) == warnings


def test_a_relay_keeps_rows_of_the_inbox_for_a_day_at_least(ask: Run, client: FakeClient) -> None:
    client.answers["keys_until_ms"] = 1
    result = ask("--inbox", "--inbox-keep", "23h")

    assert result.exit_code == 2
    assert "below a day" in result.stderr


def test_doctor_names_an_outbox_without_tables(tmp_path: Path, run: Run) -> None:
    sqlite3.connect(tmp_path / "empty.db").close()
    result = run("doctor", "--outbox", f"sqlite:///{tmp_path / 'empty.db'}", "-o", "json")

    [row] = json.loads(result.stdout)
    assert (row["state"], "foqs relay tables --create" in row["remedy"]) == ("bad", True)


def test_an_idle_relay_logs_no_progress(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    relay = Mock(sent_rows=0, parked_rows=0, refused_rows=0, rounds=0, sweeps=0, figures=None)
    changes = iter([{"rounds": 5, "sweeps": 1}, {"sent_rows": 3}])

    async def change(_seconds: float) -> None:
        if (change := next(changes, None)) is None:
            raise asyncio.CancelledError
        relay.configure_mock(**change)

    monkeypatch.setattr("foqs.cli.commands.relay_run.asyncio.sleep", change)
    with caplog.at_level("INFO"), pytest.raises(asyncio.CancelledError):
        asyncio.run(relay_run._log_progress(relay, 1.0))

    assert [record.message for record in caplog.records if record.name == "foqs.relay"] == ["progress"]


@pytest.mark.parametrize(("state", "code"), [("no state", 3), ("", 1)])
def test_a_service_that_fails_is_started_again(
    outbox: sqlite3.Connection, ask: Run, client: FakeClient, state: str, code: int
) -> None:
    """Only exit code 2 says that the options are wrong. The second relay finds the port in use."""
    client.answers["keys_until_ms"] = 1
    with outbox:
        outbox.execute("UPDATE foqs_relay SET state = ?", (state.encode(),))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = ask(*([] if state else ["--http-port", str(taken.getsockname()[1])]))

    assert result.exit_code == code, result.stderr
    assert ("the column state of the owner row" in result.stderr) == (code == 3)


def test_a_relay_that_starts_before_the_hosts_waits_for_them_until_a_signal(
    outbox: sqlite3.Connection, ask: Run, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_run, "DEFAULT_PAUSES", RelayPauses(again_s=0.01))
    asked: list[None] = []

    def answer() -> Exception:
        asked.append(None)
        if len(asked) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return Unreachable("cannot reach any host of foqs://127.0.0.1:7411")

    client.answers["keys_until_ms"] = answer
    with outbox:
        outbox.execute("UPDATE foqs_relay SET state = X''")
    result = ask()

    assert result.exit_code == 0, result.stderr
    assert "the queue: rows wait: UNREACHABLE" in result.stderr


@pytest.mark.process
def test_a_second_signal_ends_a_relay_whose_statement_does_not_end() -> None:
    command = [sys.executable, "-c", STANDING_RELAY]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as relay:
        assert relay.stdout is not None
        assert relay.stderr is not None
        assert relay.stdout.readline() == "it stands\n"
        relay.send_signal(signal.SIGTERM)
        relay.send_signal(signal.SIGINT)  # two of a kind would be one
        assert "Stopped at once by a second signal" in relay.stderr.read()
        assert relay.wait(60) == 1


@pytest.mark.parametrize(("value", "is_replica"), [(0, False), ("OFF", False), (False, False), ("ON", True), (1, True)])
def test_doctor_understands_how_each_server_says_that_it_is_a_replica(value: object, is_replica: bool) -> None:
    tables = Mock(dialect=Dialect.POSTGRES)
    tables.query.return_value = [(value,)]

    assert bool(list(outbox_checks._check_server(tables))) == is_replica
