"""What MySQL's results mean: owner, rows, keys, topics, cuts and counts.

Always true: names are stored as bytes and are text here. Knows nothing of
connections or statements.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from foqs.core.cuts import Cut
from foqs.core.fence import Owner
from foqs.core.item import Row, State, TopicName
from foqs.core.keys import KeyName, KeyRow
from foqs.store.mysql_driver import Result
from foqs.store.port import TopicCount
from foqs.store.sql_mysql_values import NEVER_MS
from foqs.store.sql_rows import owner_of, row_of


def owner_in(found: Result) -> Owner:
    """The owner row. Raises `StoreUnusable`: there is none."""
    if not found.rows:
        return owner_of(None)
    epoch, nonce, *rest = found.rows[0]
    return owner_of((epoch, nonce.decode(), *rest))


def rows_in(results: Iterable[Result]) -> list[Row]:
    """Rows of any number of statements."""
    rows = [row_of(values) for result in results for values in result.rows]
    for row in rows:
        if row.due_ms == NEVER_MS:
            row.due_ms = None
        row.namespace = _name(row.namespace)
        row.topic = _name(row.topic)
    return rows


def keys_in(results: Iterable[Result]) -> dict[KeyName, KeyRow]:
    """Rows of keys of any number of statements."""
    rows = [KeyRow(_name(namespace), *values) for result in results for namespace, *values in result.rows]
    return {(row.namespace, row.key): row for row in rows}


def topics_in(found: Result) -> list[TopicName]:
    """The topics table."""
    return [(_name(namespace), _name(topic)) for namespace, topic in found.rows]


def cuts_in(found: Result) -> list[Cut]:
    """The table of cuts."""
    return [Cut(_name(namespace), _name(topic), last) for namespace, topic, last in found.rows]


def counts_in(found: Result, of_cuts: Iterable[Result]) -> list[TopicCount]:
    """Rows and their bytes by topic and state, with the rows of each cut by state."""
    purged = {tuple(spot): rows for result in of_cuts for *spot, rows in result.rows}
    return [
        TopicCount(_name(namespace), _name(topic), State(state), rows, size, purged.get((namespace, topic, state), 0))
        for namespace, topic, state, rows, size in found.rows
    ]


@lru_cache(maxsize=4096)
def _name(value: bytes | str) -> str:
    """A name's text; few names make up many rows."""
    return str(value, "utf-8") if isinstance(value, bytes) else value
