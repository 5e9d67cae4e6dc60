"""kill -9 of hosts that journal, and of their database, within and between write-backs breaks no guarantee.

Rows are written back after 300 ms and not after five seconds, so a kill finds young, changed and ended items, and
flushes that write some of them back. At the end a host without a journal takes over: the rows that it
writes back are the items.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_kill import kill_under_load, seed
from tests.support.mariadb import MariaDb
from tests.support.mysql9 import MYSQL9_IF_LONG, running
from tests.support.poll import until
from tests.support.processes import RestartableHost, quick_host
from tests.support.tables import Tables, in_mariadb, in_sqlite

__all__ = ["seed"]

pytestmark = pytest.mark.process

JOURNALING = quick_host(journal={"write_back_after_ms": 300})
LONG_ITEMS = 100_000
LONG_KILLS = 50


@dataclass(slots=True)
class Size:
    """How long a story is: `kills`, and `acked_between` acks from one to the next."""

    kills: int
    acked_between: tuple[int, int]
    timeout_s: float


SHORT = Size(4, (30, 150), 300)
LONG = Size(LONG_KILLS, (LONG_ITEMS // LONG_KILLS, 2 * LONG_ITEMS // LONG_KILLS), 3_300)


@dataclass(slots=True)
class Journals:
    """The items that the journals of a host had to write back at each kill, by its metrics shortly before."""

    host: RestartableHost
    dirty: list[float] = field(default_factory=list)

    def wait_for_write_back(self) -> None:
        """Wait until rows have been written back since the last takeover, and others are to be."""
        until(self._writes_back, "the host writes rows back", 60)

    def _writes_back(self) -> bool:
        answer = self.host.get("/metrics")
        if answer is None or not _total(answer[1], "foqs_journal_written_back_rows_total"):
            return False
        dirty = _total(answer[1], "foqs_journal_dirty_items")
        if dirty:
            self.dirty.append(dirty)
        return dirty > 0

    def check(self, kills: int) -> None:
        assert len(self.dirty) == kills


def _total(page: str, metric: str) -> float:
    return sum(float(value) for value in re.findall(rf"^{metric}{{[^}}]*}} (\S+)$", page, re.MULTILINE))


class Story:
    """A host that journals on a store, until a last one empties its journals."""

    def __init__(self, folder: Path, store: str, tables: Tables) -> None:
        self.folder, self.store, self.tables = folder, store, tables
        self.host = RestartableHost(folder / "host", store, {"store.journal": True}, JOURNALING)
        self.journals = Journals(self.host)
        self.first_pid = 0

    def __enter__(self) -> Story:
        self.host.start()
        self.first_pid = self.host.pid
        return self

    def __exit__(self, *error: Any) -> None:
        self.host.__exit__(*error)

    def play(
        self,
        seed: int,
        size: Size,
        kill: Callable[[], None],
        revive: Callable[[], None],
        away_s: float = 0,
        *,
        stays_up: bool = False,
    ) -> None:
        def settle() -> None:
            assert not stays_up or self.host.pid == self.first_pid, "the host was to stay up"
            self.empty_journals()

        kill_under_load(
            self.host,
            self.tables,
            seed,
            size.kills,
            kill,
            revive,
            away_s,
            acked_between=size.acked_between,
            timeout_s=size.timeout_s,
            ready=self.journals.wait_for_write_back,
            settle=settle,
        )
        self.journals.check(size.kills)

    def empty_journals(self) -> None:
        """Let a host without a journal take the shards over."""
        text = self.host.config.read_text()
        assert text.count("journal = true") == 1
        self.host.config.write_text(text.replace("journal = true", "journal = false"))
        self.host.start()
        assert self.host.stop() == 0
        assert self.tables.journal_rows() == 0, "the takeover left rows of the journal"


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[MariaDb]:
    with running(request.param) as server:
        yield server


def on_server(folder: Path, server: MariaDb) -> Story:
    database = server.database()
    return Story(folder, f"mysql://root@127.0.0.1:{server.port}/{database}", in_mariadb(server, database))


def on_sqlite(folder: Path) -> Story:
    return Story(folder, f"sqlite:{folder / 'data'}", in_sqlite(folder / "data"))


SIZES = [
    pytest.param(SHORT, marks=pytest.mark.timeout(480), id="short"),
    pytest.param(LONG, marks=[pytest.mark.long, pytest.mark.timeout(3_600)], id="long"),
]


@pytest.mark.parametrize("size", SIZES)
def test_a_host_that_journals_on_sqlite_may_be_killed_at_any_moment(tmp_path: Path, size: Size, seed: int) -> None:
    with on_sqlite(tmp_path) as story:
        story.play(seed, size, story.host.kill9, story.host.launch)


@pytest.mark.mysql
@pytest.mark.parametrize("server", MYSQL9_IF_LONG, indirect=True)
@pytest.mark.parametrize("size", SIZES)
def test_a_host_that_journals_on_a_server_may_be_killed_at_any_moment(
    tmp_path: Path, server: MariaDb, size: Size, seed: int
) -> None:
    with on_server(tmp_path, server) as story:
        story.play(seed, size, story.host.kill9, story.host.launch)


@pytest.mark.mysql
@pytest.mark.parametrize("server", MYSQL9_IF_LONG, indirect=True)
@pytest.mark.parametrize("size", SIZES)
def test_the_database_of_a_host_that_journals_may_be_killed_at_any_moment(
    tmp_path: Path, server: MariaDb, size: Size, seed: int
) -> None:
    with on_server(tmp_path, server) as story:
        story.play(seed, size, server.kill9, server.start, 1.5, stays_up=True)
