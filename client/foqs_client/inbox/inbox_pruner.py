"""The pruning of an inbox beside a relay, for as long as the relay runs.

Holds `InboxPruner`. Always true: it prunes only while its relay owns the outbox, at most `PAGE_ROWS` rows in each
`page_s`; a failure ends one walk over the rows, and the next one begins later; statements run in one thread, on a
connection of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from foqs_client.client import Client
from foqs_client.errors import FoqsError
from foqs_client.inbox.pruning import KEEP_S, OldRows, check_keep
from foqs_client.outbox.outbox_connection import OutboxConnection, TablesUnavailable

log: Final = logging.getLogger("foqs.relay")
T = TypeVar("T")


@dataclass(slots=True, frozen=True)
class PrunerPauses:
    """How long a pruner waits, in seconds.

    Attributes:
        page_s: after each page. It bounds what pruning costs the database and the queue.
        owner_s: while the relay does not own the outbox, and after a failure.
        walk_s: after all old rows were read.
    """

    page_s: float = 0.5
    owner_s: float = 5.0
    walk_s: float = 300.0


class InboxPruner:
    """Prunes an inbox.

    Args:
        tables: a connection of its own.
        client: of the namespace whose items the rows name.
        is_owner: says whether the relay owns the outbox.
        keep_s: see `prune`.

    Raises:
        InvalidArgument: `keep_s` is below a day.

    Attributes:
        pruned_rows: rows that were deleted.
        waiting_rows: rows that the last whole walk has left, because their items may come again.
        other_rows: rows of other namespaces that it has left.
    """

    def __init__(
        self,
        tables: OutboxConnection,
        client: Client,
        is_owner: Callable[[], bool],
        keep_s: int = KEEP_S,
        pauses: PrunerPauses = PrunerPauses(),
    ) -> None:
        check_keep(keep_s)
        self.pruned_rows = 0
        self.waiting_rows = 0
        self.other_rows = 0
        self._tables = tables
        self._client = client
        self._is_owner = is_owner
        self._keep_s = keep_s
        self._pauses = pauses
        self._thread = ThreadPoolExecutor(1, "foqs-inbox")

    async def run(self) -> None:
        """Prune until it is cancelled."""
        is_failing = False
        try:
            while True:
                pause_s = self._pauses.owner_s
                try:
                    if self._is_owner() and await self._walk():
                        pause_s, is_failing = self._pauses.walk_s, False
                except (FoqsError, TablesUnavailable) as error:
                    (log.debug if is_failing else log.warning)("the inbox is not pruned now: %s", error)
                    is_failing = True
                await self._in_thread(self._tables.close)  # the server would end it during the pause
                await asyncio.sleep(pause_s)
        finally:
            await self._in_thread(self._tables.close)
            self._thread.shutdown()

    async def _walk(self) -> bool:
        """Read all old rows, and delete those whose items are gone. Return False if the relay loses the outbox meanwhile."""
        walk = OldRows(await self._client.incarnation(), self._keep_s, self._tables.prefix, rows_max=_ALL)
        while not walk.is_over:
            if not self._is_owner():
                return False
            rows = await self._in_thread(walk.read_page, self._tables)
            acked = [(row.id, row.token) for row in rows]
            outcomes = await self._client.ack(acked, timeout_ms=_ACK_TIMEOUT_MS) if rows else []
            before = walk.found.deleted
            await self._in_thread(walk.settle_page, self._tables, rows, outcomes)
            self.pruned_rows += walk.found.deleted - before
            await asyncio.sleep(self._pauses.page_s)
        self.waiting_rows, self.other_rows = walk.found.waiting, walk.found.others
        return True

    async def _in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)


_ACK_TIMEOUT_MS: Final = 5_000
"""Less than a session of the database may say nothing."""
_ALL: Final = 1 << 62
"""A walk is bounded by its pauses."""
