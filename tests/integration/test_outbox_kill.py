"""An outbox whose relays, host and database are killed: each committed row is one item, and each user's are in order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.support.mariadb import MariaDb
from tests.support.outbox_databases import mysql_place, sqlite_place
from tests.support.outbox_trial import OutboxTrial
from tests.support.processes import RestartableHost

pytestmark = pytest.mark.process


@pytest.fixture
def mariadb() -> Iterator[MariaDb]:
    server = MariaDb()
    server.start()
    yield server
    server.remove()


def test_rows_of_an_outbox_are_queued_once_and_in_order_whatever_is_killed(tmp_path: Path) -> None:
    with RestartableHost(tmp_path / "host", f"sqlite:{tmp_path / 'items'}") as host:
        host.start()
        trial = OutboxTrial(sqlite_place(tmp_path).prepare(), host, 300, Random(1))
        trial.run([trial.kill_relay, trial.kill_host, trial.kill_relay, trial.kill_relay])

        assert trial.queued() == trial.committed()


@pytest.mark.long
@pytest.mark.mysql
@pytest.mark.timeout(3_600)
def test_a_hundred_thousand_transactions_outlast_ten_kills_of_relay_host_and_database(
    tmp_path: Path, mariadb: MariaDb
) -> None:
    def kill_database() -> None:
        mariadb.kill9()
        mariadb.start()

    with RestartableHost(tmp_path / "host", f"sqlite:{tmp_path / 'items'}") as host:
        host.start()
        trial = OutboxTrial(mysql_place(mariadb).prepare(), host, 100_000, Random(1))
        trial.run([trial.kill_relay, trial.kill_host, kill_database] * 10)

        assert trial.queued() == trial.committed()
