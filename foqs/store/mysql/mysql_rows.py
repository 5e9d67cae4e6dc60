"""Decodes MySQL's results: owner, rows, idempotency keys, topics, purge markers, counts and connections.

Always true: names are stored as bytes and become text here. Knows nothing of
connections or statements.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from foqs.core.flush.fence import Owner
from foqs.core.flush.purge_markers import PurgeMarker
from foqs.core.items.idempotency_keys import IdempotencyKey, KeyName
from foqs.core.items.item import Row, State, TopicName
from foqs.store.mysql.mysql_driver import Result
from foqs.store.port import TopicCount
from foqs.store.row_columns import NEVER_MS
from foqs.store.sql_rows import POLICIES, STATES, owner_of


def decode_owner(result: Result) -> Owner:
    """Decode the owner row. Raises `StoreUnusable` if there is none."""
    if not result.rows:
        return owner_of(None)
    epoch, nonce, *rest = result.rows[0]
    return owner_of((epoch, nonce.decode(), *rest))


# columns: begin decoding
def decode_rows(results: Iterable[Result]) -> list[Row]:
    """Decode the rows of any number of statements."""
    # As `row_of`, in one step, because most rows of a long backlog are read once.
    return [
        Row(
            id,
            _decode_name(namespace),
            _decode_name(topic),
            priority,
            deliver_after_ms,
            enqueued_at_ms,
            lease_ms,
            ttl_ms,
            expires_at_ms,
            POLICIES[policy],
            attempts_max,
            payload_bytes,
            payload,
            metadata,
            STATES[state],
            None if due_ms == NEVER_MS else due_ms,
            token,
            attempt,
            trace_context,
            first_delivered_at_ms or None,
            item_group,
        )
        for result in results
        for (
            id,
            namespace,
            topic,
            priority,
            deliver_after_ms,
            enqueued_at_ms,
            lease_ms,
            ttl_ms,
            expires_at_ms,
            policy,
            attempts_max,
            payload_bytes,
            payload,
            metadata,
            state,
            due_ms,
            token,
            attempt,
            trace_context,
            first_delivered_at_ms,
            item_group,
        ) in result.rows
    ]


# columns: end


def decode_idempotency_keys(results: Iterable[Result]) -> dict[KeyName, IdempotencyKey]:
    """Decode the key rows of any number of statements."""
    rows = [
        IdempotencyKey(_decode_name(namespace), *values) for result in results for namespace, *values in result.rows
    ]
    return {(row.namespace, row.key): row for row in rows}


def decode_topics(result: Result) -> list[TopicName]:
    """Decode the topics table."""
    return [(_decode_name(namespace), _decode_name(topic)) for namespace, topic in result.rows]


def decode_purge_markers(result: Result) -> list[PurgeMarker]:
    """Decode the table of purge markers."""
    return [PurgeMarker(_decode_name(namespace), _decode_name(topic), last) for namespace, topic, last in result.rows]


WAITS_FOR_ACK: Final = "Waiting for semi-sync ACK"
"""The beginning of the state of a commit that waits for a replica."""


@dataclass(slots=True, frozen=True)
class Process:
    """A connection to the server. `command` is Sleep while it runs nothing; `state` says what its statement does."""

    user: str
    database: str
    command: str
    state: str

    @property
    def is_committing(self) -> bool:
        """Whether it commits on a MariaDB server, or waits for the ack of a replica on either kind."""
        return self.state == "Commit" or self.state.startswith(WAITS_FOR_ACK)


def decode_processes(result: Result) -> dict[int, Process]:
    """Decode the list of connections, by id. The servers' lists begin with the same columns."""
    return {
        values[0]: Process(*[_decode_name(value or "") for value in (values[1], values[3], values[4], values[6])])
        for values in result.rows
    }


def decode_counts(counts: Result, purged_results: Iterable[Result]) -> list[TopicCount]:
    """Decode the counts by topic and state, with the purged rows of each marker by state."""
    purged = {tuple(group): rows for result in purged_results for *group, rows in result.rows}
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
    """Decode a name. Cached, because many rows have the same few names."""
    return str(value, "utf-8") if isinstance(value, bytes) else value
