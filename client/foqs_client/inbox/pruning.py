"""Pruning of an inbox: rows whose items cannot come again are deleted.

Holds `prune`, `prune_async` and `OldRows`. Always true: a row is deleted only after an ack with its token has found its item
gone, or has deleted it; time alone deletes none. Acks of committed effects are always right, so each step may be repeated,
and a transaction that is rolled back only leaves rows for the next pruning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from foqs_client.client import Client
from foqs_client.errors import InvalidArgument
from foqs_client.inbox.inbox_rows import (
    BEFORE_ALL,
    PAGE_ROWS,
    InboxRow,
    InboxTables,
    delete_rows,
    read_old,
)
from foqs_client.outbox.outbox_sql import DEFAULT_PREFIX
from foqs_client.outbox.user_connections import run_blocking, user_connection
from foqs_client.sync_client import SyncClient
from foqs_client.types import Outcome

KEEP_S: Final = 7 * 86_400
KEEP_S_MIN: Final = 86_400
"""A consumer that is frozen between its dequeue and its `once` for longer would work twice."""
ROWS_MAX: Final = 10_000


def check_keep(keep_s: int) -> None:
    """Raise InvalidArgument for a time that is too short to keep rows."""
    if keep_s < KEEP_S_MIN:
        raise InvalidArgument(f"{keep_s} s is below a day; keep rows for {KEEP_S_MIN} s or more", field="keep_s")


@dataclass(slots=True, frozen=True)
class Pruned:
    """What a pruning has found.

    Attributes:
        deleted: rows whose items cannot come again.
        waiting: rows that stay, because their items may come again.
        others: rows that stay, because they are of other namespaces, or of an earlier one of this name.
        last: pass it to the next pruning as `after`; None: all old rows were read.
    """

    deleted: int = 0
    waiting: int = 0
    others: int = 0
    last: InboxRow | None = None


class OldRows:
    """The walk of a pruning over the old rows of an inbox, by pages. Each page is read, acked by the caller, and settled.

    Args:
        incarnation: the number of the incarnation of the namespace whose items are acked.
        keep_s: rows that are younger are not read.

    Raises:
        InvalidArgument: `keep_s` is below a day.
    """

    def __init__(
        self, incarnation: int, keep_s: int, prefix: str, after: InboxRow | None = None, rows_max: int = ROWS_MAX
    ) -> None:
        check_keep(keep_s)
        self._incarnation = incarnation
        self._keep_ms = keep_s * 1_000
        self._prefix = prefix
        self._rows_left = rows_max
        self._limit = PAGE_ROWS
        self._page: list[InboxRow] = []
        self.found = Pruned(last=after or BEFORE_ALL)

    def read_page(self, tables: InboxTables) -> list[InboxRow]:
        """Read the next page, and return the rows of it whose items are to be acked. After the last one, `is_over` is true."""
        last = self.found.last or BEFORE_ALL
        self._limit = min(PAGE_ROWS, self._rows_left)
        self._page = read_old(tables, self._prefix, self._keep_ms, last, self._limit)
        return [row for row in self._page if row.is_of(self._incarnation)]

    def settle_page(self, tables: InboxTables, rows: Sequence[InboxRow], outcomes: Sequence[Outcome]) -> None:
        """Delete the rows whose acks succeeded.

        Args:
            rows: those that `read_page` has returned.
            outcomes: of the acks of their items.
        """
        gone = [row for row, outcome in zip(rows, outcomes, strict=True) if outcome.error is None]
        delete_rows(tables, self._prefix, gone)
        self._rows_left -= len(self._page)
        self.found = Pruned(
            self.found.deleted + len(gone),
            self.found.waiting + len(rows) - len(gone),
            self.found.others + len(self._page) - len(rows),
            self._page[-1] if len(self._page) == self._limit else None,
        )

    @property
    def is_over(self) -> bool:
        """Whether all old rows were read, or as many as one pruning may."""
        return self.found.last is None or self._rows_left <= 0


def prune(
    connection: Any,
    client: SyncClient,
    *,
    keep_s: int = KEEP_S,
    rows_max: int = ROWS_MAX,
    after: InboxRow | None = None,
    prefix: str = DEFAULT_PREFIX,
) -> Pruned:
    """Ack the items of old rows again, and delete the rows whose items are gone. Commit afterwards.

    Args:
        connection: as for `once`. It may commit each statement.
        client: of the namespace whose items the rows name; it needs the permission to consume.
        keep_s: rows that are younger stay, at least a day. It must be longer than a handler can be frozen.
        rows_max: the maximum number of rows that are read.
        after: `Pruned.last` of the pruning before.

    Raises:
        InvalidArgument: an argument is wrong; `field` names it.
        FoqsError: the queue does not answer. The rows of the pages before are deleted.
    """
    user = user_connection(connection)
    walk = OldRows(client.incarnation(), keep_s, prefix, after, rows_max)
    while not walk.is_over:
        rows = walk.read_page(user)
        walk.settle_page(user, rows, client.ack([(row.id, row.token) for row in rows]) if rows else [])
    return walk.found


async def prune_async(
    connection: Any,
    client: Client,
    *,
    keep_s: int = KEEP_S,
    rows_max: int = ROWS_MAX,
    after: InboxRow | None = None,
    prefix: str = DEFAULT_PREFIX,
) -> Pruned:
    """Do the same as `prune` with an AsyncConnection, an AsyncSession or an async_scoped_session of SQLAlchemy."""
    walk = OldRows(await client.incarnation(), keep_s, prefix, after, rows_max)
    while not walk.is_over:
        rows = await run_blocking(connection, lambda blocking: walk.read_page(user_connection(blocking)))
        outcomes = await client.ack([(row.id, row.token) for row in rows]) if rows else []
        await run_blocking(connection, partial(_settle, walk, rows, outcomes))
    return walk.found


def _settle(walk: OldRows, rows: Sequence[InboxRow], outcomes: Sequence[Outcome], blocking: Any) -> None:
    walk.settle_page(user_connection(blocking), rows, outcomes)
