"""The contents of the tables of every shard, read directly from the database.

Always true: nothing is written. Knows the column names of the schema, and the numbers
of the states.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from foqs.core.items.item import State, format_id
from foqs.store.row_columns import NEVER_MS
from tests.support.history import Event
from tests.support.mariadb import MariaDb
from tests.support.recording_client import first_wait_ms, row_event

Query: TypeAlias = Callable[[int, str], Sequence[Sequence[Any]]]
"""Runs a SELECT in which `{item}` and the like stand for the tables of a shard."""

_TABLES: Final = ("item", "owner", "topic", "key", "slot", "cut", "timer")
_NAMES: Final = (*_TABLES, "journal")
_ADDED: Final = "trace_context, enqueued_at_ms, first_delivered_at_ms"
_COLUMNS: Final = f"id, topic, priority, state, token, attempt, attempts_max, due_ms, payload, metadata, {_ADDED}"


@dataclass(slots=True, frozen=True)
class Tables:
    """All shards of one store."""

    shards: range
    query: Query

    def rows(self) -> list[Event]:
        """Every item, as `History.present` takes it."""
        return [
            _event(shard, values)
            for shard in self.shards
            for values in self.query(shard, f"SELECT {_COLUMNS} FROM {{item}}")
        ]

    def owners(self) -> dict[int, tuple[int, int]]:
        """Epoch and flush number by shard."""
        found = {}
        for shard in self.shards:
            [(epoch, flush)] = self.query(shard, "SELECT epoch, flush FROM {owner}")
            found[shard] = (epoch, flush)
        return found

    def journal_rows(self) -> int:
        """Return the number of rows of all journals, without their reserves."""
        return sum(
            self.query(shard, "SELECT COUNT(*) FROM {journal} WHERE position > 0")[0][0] for shard in self.shards
        )

    def image(self) -> list[tuple[Any, ...]]:
        """Everything that a host may write, to compare with a later image."""
        return [
            tuple(values)
            for shard in self.shards
            for table in map("{{{}}}".format, _TABLES)
            for values in self.query(shard, f"SELECT * FROM {table}")
        ]


def in_sqlite(folder: Path, shards: int = 4) -> Tables:
    """The shards' files in `folder`."""

    def query(shard: int, text: str) -> Sequence[Sequence[Any]]:
        with closing(sqlite3.connect(f"file:{folder}/shard-{shard}.db?mode=ro", uri=True, timeout=10)) as db:
            return db.execute(text.format(**{table: table for table in _NAMES})).fetchall()

    return Tables(range(shards), query)


def in_mariadb(server: MariaDb, database: str, shards: int = 4) -> Tables:
    """The shards' tables in one database."""

    def query(shard: int, text: str) -> Sequence[Sequence[Any]]:
        tables = {table: f"{database}.foqs_{shard}_{table}" for table in _NAMES}
        return server.query(text.format(**tables))

    return Tables(range(shards), query)


def _event(shard: int, values: Iterable[Any]) -> Event:
    number, topic, priority, state, token, attempt, attempts_max, due_ms, payload, metadata, *added = values
    trace_context, enqueued_at_ms, first_delivered_at_ms = added
    return row_event(
        id=format_id(shard, number),
        payload=payload,
        topic=topic if isinstance(topic, str) else topic.decode(),
        priority=priority,
        state=State(state).name.lower(),
        token=token,
        attempt=attempt,
        attempts_max=attempts_max,
        due_in_ms=None if due_ms in (None, NEVER_MS) else due_ms - time.time_ns() // 1_000_000,
        metadata=metadata,
        trace_context=trace_context,
        first_wait_ms=first_wait_ms(enqueued_at_ms, first_delivered_at_ms or None),
    )
