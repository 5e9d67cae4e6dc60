"""The queues of the accounts: found in the catalog as it applies here, and changed there.

Always true: an account has one namespace; a queue that another host has just created is
looked for in the stored catalog before it counts as unknown, at most once a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from foqs.catalog.administration import Administration
from foqs.catalog.document import QueueEntry
from foqs.catalog.port import CatalogError
from foqs.catalog.queue_changes import QueueChange, change_queue
from foqs.options.sqs_options import SqsOptions
from foqs.sqs.errors import queue_does_not_exist
from foqs.sqs.identifiers import QueueName

REFRESH_INTERVAL_S: Final = 1.0
_NOTHING: Final[Mapping[str, QueueEntry]] = {}


class QueueDirectory:
    """Finds and changes queues.

    Args:
        time_s: a steady clock, in seconds.
    """

    def __init__(self, admin: Administration, options: SqsOptions, time_s: Callable[[], float]) -> None:
        self._admin = admin
        self._accounts = options.accounts
        self._queues_max = options.queues_max
        self._time_s = time_s
        self._refreshed_at_s = time_s() - REFRESH_INTERVAL_S
        self._refreshing: asyncio.Future[None] | None = None
        self.account_default = next(iter(options.accounts))

    def namespace_of(self, account: str) -> str:
        """Return the namespace of an account. Raises `SqsError` if there is no such account."""
        namespace = self._accounts.get(account)
        if namespace is None:
            raise queue_does_not_exist()
        return namespace

    def queues(self, namespace: str) -> Mapping[str, QueueEntry]:
        """Return the queues of a namespace by name. Raises `Unavailable`."""
        found = self._admin.document().namespaces.get(namespace)
        return _NOTHING if found is None else found.queues

    async def find(self, queue: QueueName) -> QueueEntry:
        """Return the entry of a queue. Raises `SqsError` if it does not exist."""
        namespace = self.namespace_of(queue.account)
        entry = self.queues(namespace).get(queue.name)
        if entry is None:
            await self._refresh()
            entry = self.queues(namespace).get(queue.name)
        if entry is None:
            raise queue_does_not_exist()
        return entry

    async def change(self, queue: QueueName, change: QueueChange, deadline: float) -> None:
        """Store the change of a queue's entry. Raises `FoqsError`, and what `change` raises."""
        namespace = self.namespace_of(queue.account)
        await self._admin.change(
            lambda document: change_queue(document, namespace, queue.name, change, self._queues_max), deadline
        )

    async def _refresh(self) -> None:
        """Read the stored catalog, unless that was done within the last second. All callers wait for one reading."""
        if self._refreshing is None:
            if self._time_s() - self._refreshed_at_s < REFRESH_INTERVAL_S:
                return
            self._refreshing = asyncio.ensure_future(self._read_catalog())
        await asyncio.shield(self._refreshing)

    async def _read_catalog(self) -> None:
        try:
            with suppress(CatalogError):  # what applies here stays in use
                await self._admin.refresh()
        finally:
            self._refreshed_at_s = self._time_s()
            self._refreshing = None
