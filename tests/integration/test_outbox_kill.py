"""An outbox whose relays, host and database are killed: each committed row is one item, and those of each row group are in order.

The long form prints its progress and figures: `pytest -s -m long tests/integration/test_outbox_kill.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

import pytest

from tests.support.mariadb import MariaDb
from tests.support.outbox_trial import SHARDS, OutboxTrial
from tests.support.processes import RestartableHost

pytestmark = [pytest.mark.process, pytest.mark.mysql]

KEY_WINDOW_S: Final = 130
"""Little more than the least that a namespace may have."""
STOP_S: Final = KEY_WINDOW_S + 10


@pytest.fixture
def mariadb() -> Iterator[MariaDb]:
    server = MariaDb()
    server.start()
    yield server
    server.remove()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[RestartableHost]:
    options = {"namespace.key_window_ms": KEY_WINDOW_S * 1_000, "store.shards": SHARDS}
    with RestartableHost(tmp_path / "host", f"sqlite:{tmp_path / 'items'}", options) as host:
        host.start()
        yield host


def test_rows_of_an_outbox_are_queued_once_and_in_order_whatever_is_killed(
    host: RestartableHost, mariadb: MariaDb
) -> None:
    trial = OutboxTrial(mariadb, host, 600, Random(1))
    trial.run([trial.kill_relay, trial.kill_host, trial.kill_database])

    assert trial.delivered() == trial.committed()


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_a_hundred_thousand_transactions_outlast_ten_kills_of_each_party_and_relays_that_are_away_for_the_key_window(
    host: RestartableHost, mariadb: MariaDb
) -> None:
    trial = OutboxTrial(mariadb, host, 100_000, Random(1))
    kills = [trial.kill_relay, trial.kill_host, trial.kill_database]
    freeze, stop = partial(trial.freeze_relay, STOP_S), partial(trial.stop_relays, STOP_S)
    trial.run([*kills * 4, freeze, *kills * 3, stop, *kills * 3])

    assert trial.delivered() == trial.committed()
