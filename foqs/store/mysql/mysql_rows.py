"""What MySQL's results mean: owner, rows, keys, topics, cuts and counts.

Always true: names are stored as bytes and are text here. Knows nothing of
connections or statements.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from foqs.core.flush.fence import Owner
from foqs.core.flush.purge_markers import PurgeMarker
from foqs.core.items.idempotency_keys import IdempotencyKey, KeyName
from foqs.core.items.item import Row, State, TopicName
from foqs.store.mysql.mysql_driver import Result
from foqs.store.mysql.mysql_values import NEVER_MS
from foqs.store.port import TopicCount
from foqs.store.sql_rows import owner_of, row_of


def decode_owner(result: Result) -> Owner:
    """The owner row. Raises `StoreUnusable`: there is none."""
    if not result.rows:
        return owner_of(None)
    epoch, nonce, *rest = result.rows[0]
    return owner_of((epoch, nonce.decode(), *rest))


def decode_rows(results: Iterable[Result]) -> list[Row]:
    """Rows of any number of statements."""
    rows = [row_of(values) for result in results for values in result.rows]
    for row in rows:
        if row.due_ms == NEVER_MS:
            row.due_ms = None
        row.namespace = _decode_name(row.namespace)
        row.topic = _decode_name(row.topic)
    return rows


def decode_idempotency_keys(results: Iterable[Result]) -> dict[KeyName, IdempotencyKey]:
    """Rows of keys of any number of statements."""
    rows = [
        IdempotencyKey(_decode_name(namespace), *values) for result in results for namespace, *values in result.rows
    ]
    return {(row.namespace, row.key): row for row in rows}


def decode_topics(result: Result) -> list[TopicName]:
    """The topics table."""
    return [(_decode_name(namespace), _decode_name(topic)) for namespace, topic in result.rows]


def decode_purge_markers(result: Result) -> list[PurgeMarker]:
    """The table of cuts."""
    return [PurgeMarker(_decode_name(namespace), _decode_name(topic), last) for namespace, topic, last in result.rows]


def decode_counts(counts: Result, purged_results: Iterable[Result]) -> list[TopicCount]:
    """Rows and their bytes by topic and state, with the rows of each cut by state."""
    purged = {tuple(spot): rows for result in purged_results for *spot, rows in result.rows}
    return [
        TopicCount(
            _decode_name(namespace),
            _decode_name(topic),
            State(state),
            rows,
            size,
            purged.get((namespace, topic, state), 0),
        )
        for namespace, topic, state, rows, size in counts.rows
    ]


@lru_cache(maxsize=4096)
def _decode_name(value: bytes | str) -> str:
    """A name's text; few names make up many rows."""
    return str(value, "utf-8") if isinstance(value, bytes) else value
