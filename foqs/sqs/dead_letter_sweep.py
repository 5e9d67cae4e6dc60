"""Moves the DEAD items of queues with a redrive policy, in the shards of this host.

They are dead letters whose move was interrupted, and items that a consumer over Thrift gave
up. Always true: a host moves items of its own shards only, so one host moves an item,
whichever hosts have an SQS server; after a takeover it is the new owner.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final, Protocol

from foqs.catalog.document import Document
from foqs.core.items.item import State
from foqs.core.items.life import Event, EventKind
from foqs.core.items.row_filter import RowFilter
from foqs.core.memory.topic_counts import TopicCounts
from foqs.queue.port import BulkChanges
from foqs.sqs.redrive_policy import Redrive, redrive_in_force
from foqs_contract.errors import FoqsError

log = logging.getLogger(__name__)

INTERVAL_S: Final = 1.0
PAGE_ITEMS: Final = 500
"""The maximum number of items that are moved at once in each shard."""


class CountedShard(Protocol):
    """A shard that this host serves, as a sweep needs it."""

    @property
    def counts(self) -> TopicCounts: ...


class DeadLetterSweep:
    """Moves the dead letters that are DEAD items, about once in `INTERVAL_S`.

    Args:
        document: returns the catalog as it applies here. Raises `FoqsError`.
        shards: the shards that this host serves, by number.
        bulk: the bulk changes of this host's queue.
        timeout_s: the time for each page.
    """

    def __init__(
        self,
        document: Callable[[], Document],
        shards: Mapping[int, CountedShard],
        bulk: BulkChanges,
        timeout_s: float,
    ) -> None:
        self._document = document
        self._shards = shards
        self._bulk = bulk
        self._timeout_s = timeout_s
        self._known: Document | None = None
        self._redrives: list[Redrive] = []
        """The policies that are in force by the document `_known`."""
        self._failures: dict[tuple[str, str], str] = {}
        """The error that was logged last, by namespace and queue."""

    async def run(self) -> None:
        """Sweep until cancelled."""
        while True:
            is_done = True
            try:
                is_done = await self.sweep()
            except FoqsError as error:
                log.debug("dead letters cannot be moved now; trying again: %s", error.message)
            except Exception:
                log.exception("moving dead letters failed with an unexpected error; trying again")
            if is_done:
                await asyncio.sleep(INTERVAL_S)

    async def sweep(self) -> bool:
        """Move a page of items of each queue in each shard. Return whether no queue has more that can be moved. Raises `FoqsError`."""
        document = self._document()
        if document is not self._known:
            self._redrives, self._known = _redrives(document), document
            self._failures.clear()
        is_done = True
        for redrive in self._redrives:
            topic = (redrive.namespace, redrive.source)
            shards = [n for n, shard in self._shards.items() if shard.counts.count(topic, State.DEAD) > 0]
            if not shards:
                continue
            try:
                is_done &= await self._move_pages(redrive, shards)
            except FoqsError as error:
                self._log_once(topic, error)
            else:
                self._failures.pop(topic, None)
        return is_done

    async def _move_pages(self, redrive: Redrive, shards: Collection[int]) -> bool:
        """Move a page in each shard at once; return whether nothing is left. Raises an error of a page when all have ended."""
        results = await asyncio.gather(*(self._move_page(redrive, shard) for shard in shards), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return all(results)

    async def _move_page(self, redrive: Redrive, shard: int) -> bool:
        """Move the first items of a shard that can be moved; return whether nothing is left there."""
        move = Event(EventKind.MOVE, 0, redrive.namespace, topic=redrive.target, ttl_remaining_ms=redrive.retention_ms)
        dead = RowFilter(redrive.source, (State.DEAD,))
        deadline = asyncio.get_running_loop().time() + self._timeout_s
        cursor: str | None = None
        while True:
            page = await self._bulk.change_matching(
                redrive.namespace, move, dead, cursor, PAGE_ITEMS, deadline, [shard]
            )
            cursor = page.next_cursor
            if cursor is None or page.changed:
                return cursor is None

    def _log_once(self, topic: tuple[str, str], error: FoqsError) -> None:
        """Log why dead letters cannot be moved, unless that was logged before."""
        if self._failures.get(topic) != error.message:
            self._failures[topic] = error.message
            level = logging.INFO if error.may_succeed_later else logging.WARNING
            log.log(
                level,
                "dead letters of the queue %s of namespace %s are not moved yet: %s",
                topic[1],
                topic[0],
                error.message,
            )


def _redrives(document: Document) -> list[Redrive]:
    found = [
        redrive_in_force(name, queue, namespace.queues)
        for name, namespace in document.namespaces.items()
        if namespace.deleting is None
        for queue in namespace.queues
    ]
    return [redrive for redrive in found if redrive is not None]
