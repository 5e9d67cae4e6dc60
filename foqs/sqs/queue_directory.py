"""The queues of the accounts: found in the catalog as it applies here, and changed there.

Always true: an account has one namespace, and another one in each region that has a key of its
own in `sqs.accounts`; a queue counts as unknown only after the stored catalog was read once
more, so a queue that another host has just created is found; such readings begin at most
once in `READ_INTERVAL_S`, one after the other; no send waits until its queue is fair.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Final

from foqs.catalog.administration import Administration
from foqs.catalog.changes import in_one_version, set_policy
from foqs.catalog.document import Document, PolicyRecord, QueueEntry
from foqs.catalog.port import CatalogError
from foqs.catalog.queue_changes import QueueChange, change_queue, mark_fair
from foqs.options.sqs_options import SqsOptions
from foqs.sqs import fifo
from foqs.sqs.errors import SqsError, queue_does_not_exist
from foqs.sqs.identifiers import Account, QueueName, parse_account
from foqs_contract.errors import FoqsError, Unavailable
from foqs_contract.plurals import counted

READ_INTERVAL_S: Final = 0.25
MARK_TIMEOUT_S: Final = 5.0
"""The time limit of the change that makes queues fair. Nobody waits for it."""
MARK_INTERVAL_S: Final = 1.0
"""The least time between two such changes of a namespace."""
MARK_RETRY_S: Final = 10.0
"""The time after which such a change is tried again, if it failed."""
log = logging.getLogger(__name__)
_NOTHING: Final[Mapping[str, QueueEntry]] = {}


class QueueDirectory:
    """Finds and changes queues.

    Args:
        time_s: a steady clock, in seconds.
    """

    def __init__(self, admin: Administration, options: SqsOptions, time_s: Callable[[], float]) -> None:
        self._admin = admin
        self._namespaces = {parse_account(key): namespace for key, namespace in options.accounts.items()}
        """By account of `sqs.accounts`: without a region it is that of all regions without a key of their own."""
        self._queues_max = options.queues_max
        self._time_s = time_s
        self._reading: asyncio.Future[CatalogError | None] | None = None
        """The reading that began last; its result is its error, or None."""
        self._next_reading: asyncio.Future[CatalogError | None] | None = None
        """The reading that has not begun yet, for which callers wait."""
        self._last_began_at_s = time_s() - READ_INTERVAL_S
        self._watchers: dict[str, dict[Callable[[], None], None]] = {}
        """The callbacks of `watching`, by namespace."""
        self._unmarked: dict[str, set[str]] = {}
        """By namespace, the queues that become fair with its next change."""
        self._marking: dict[str, asyncio.Future[None]] = {}
        """The changes of these namespaces, which are under way."""
        self._next_marks_s: dict[str, float] = {}
        """By namespace, the time before which no such change is tried again, on the steady clock."""
        admin.add_change_listener(self._on_catalog_changed)

    def account_default(self, region: str) -> Account:
        """Return the account of calls of a region that name no queue: the first one."""
        return replace(next(iter(self._namespaces)), region=region)

    def configured(self, account: Account) -> Account:
        """Return an account as `sqs.accounts` has it: with its region only if that has a key of its own."""
        return account if account in self._namespaces else Account(account.digits)

    def known_namespace_of(self, account: Account) -> str | None:
        """Return the namespace of an account; None if there is no such account in its region."""
        return self._namespaces.get(self.configured(account))

    def namespace_of(self, account: Account) -> str:
        """Return the namespace of an account. Raises `SqsError` if there is no such account in its region."""
        namespace = self.known_namespace_of(account)
        if namespace is None:
            raise queue_does_not_exist()
        return namespace

    def is_same(self, queue: QueueName, other: QueueName) -> bool:
        """Return whether another name is that of this queue, too. Raises `SqsError` if this queue's account does not exist."""
        return queue.name == other.name and self.namespace_of(queue.account) == self.known_namespace_of(other.account)

    def queues(self, namespace: str) -> Mapping[str, QueueEntry]:
        """Return the queues of a namespace by name. Raises `Unavailable`."""
        found = self._admin.document().namespaces.get(namespace)
        return _NOTHING if found is None else found.queues

    async def find(self, queue: QueueName) -> QueueEntry:
        """Return the entry of a queue.

        Raises:
            SqsError: it does not exist.
            Unavailable: the stored catalog cannot be read now, so this is not known.
        """
        namespace = self.namespace_of(queue.account)
        entry = self.queues(namespace).get(queue.name)
        if entry is None:
            await self._read_again()
            entry = self.queues(namespace).get(queue.name)
        if entry is None:
            raise queue_does_not_exist()
        return entry

    def is_current(self, queue: QueueName, entry: QueueEntry) -> bool:
        """Return whether the queue is the same one, has the same attributes and still its order, as far as this host knows."""
        found = self.queues(self.namespace_of(queue.account)).get(queue.name)
        is_same = found is entry or (
            found is not None and (found.attributes, found.created_at_s) == (entry.attributes, entry.created_at_s)
        )
        return is_same and self._is_in_order(queue)

    @contextmanager
    def watching(self, namespace: str, on_change: Callable[[], None]) -> Iterator[None]:
        """Call `on_change` after each change of the namespace in the catalog, during the block."""
        watchers = self._watchers.setdefault(namespace, {})
        watchers[on_change] = None
        try:
            yield
        finally:
            del watchers[on_change]
            if not watchers:
                self._watchers.pop(namespace, None)

    def _on_catalog_changed(self, changed: Collection[str]) -> None:
        for namespace in changed:
            for on_change in list(self._watchers.get(namespace, ())):
                on_change()

    async def change(self, queue: QueueName, change: QueueChange, deadline: float, *, is_administrator: bool) -> None:
        """Store the change of a queue's entry; see `Administration.change_part`. Raises `FoqsError`, and what `change` raises."""
        namespace = self.namespace_of(queue.account)

        def change_document(document: Document) -> Document:
            after = change_queue(document, namespace, queue.name, change, self._queues_max)
            if not queue.is_fifo:
                return after
            existed, exists = (queue.name in each.namespaces[namespace].queues for each in (document, after))
            policy = document.namespaces[namespace].policies.get(queue.name, PolicyRecord())
            if exists and not existed:
                _check_policy(queue.name, policy)
            in_order = replace(policy, group_leases_max=fifo.GROUP_LEASES_MAX) if exists else PolicyRecord()
            return in_one_version(document, set_policy(after, namespace, queue.name, in_order))

        await self._admin.change_part(namespace, change_document, deadline, is_administrator=is_administrator)

    def let_groups_take_turns(self, queue: QueueName) -> None:
        """Make a standard queue fair, soon: it has a message with a group. A topic with rules for groups keeps these."""
        namespace = self.namespace_of(queue.account)
        record = self._admin.document().namespaces.get(namespace)
        entry = None if record is None else record.queues.get(queue.name)
        if record is None or entry is None or entry.is_fair or queue.is_fifo:
            return
        policy = record.policies.get(queue.name)
        if (policy is not None and policy.rules is not None) or self._time_s() < self._next_marks_s.get(namespace, 0.0):
            return
        if namespace in self._unmarked:
            self._unmarked[namespace].add(queue.name)
        else:
            self._unmarked[namespace] = {queue.name}
            self._marking[namespace] = asyncio.ensure_future(self._mark_fair(namespace))

    async def _mark_fair(self, namespace: str) -> None:
        """Mark the queues of a namespace that have got messages with groups: those of a second in one change."""
        names: Collection[str] = ()
        try:
            while self._unmarked[namespace]:
                names = frozenset(self._unmarked[namespace])
                change = partial(mark_fair, namespace_name=namespace, names=names)
                deadline = self._time_s() + MARK_TIMEOUT_S
                await self._admin.change_part(namespace, change, deadline, is_administrator=False)
                self._unmarked[namespace].difference_update(names)
                await asyncio.sleep(MARK_INTERVAL_S)
        except FoqsError as error:
            self._next_marks_s[namespace] = self._time_s() + MARK_RETRY_S
            log.warning(
                "groups of %s in namespace %s take no turns yet: %s", counted(len(names), "queue"), namespace, error
            )
        finally:
            del self._unmarked[namespace], self._marking[namespace]

    def check_order(self, queue: QueueName) -> None:
        """Check that the topic of a FIFO queue is delivered in order. Raises `SqsError` if its policy was removed since."""
        if not self._is_in_order(queue):
            raise SqsError(
                "UnsupportedOperation",
                f"The topic of {queue.name} has no policy of strict order any more, so this queue is not FIFO. Create "
                f"the queue again, or set the policy: foqs topic policy {queue.name} --group-leases-max 1",
            )

    def _is_in_order(self, queue: QueueName) -> bool:
        """Return whether the topic of a FIFO queue is delivered in order; True for a standard queue."""
        if not queue.is_fifo:
            return True
        namespace = self._admin.document().namespaces.get(self.namespace_of(queue.account))
        policy = None if namespace is None else namespace.policies.get(queue.name)
        return policy is not None and policy.group_leases_max == fifo.GROUP_LEASES_MAX

    async def _read_again(self) -> None:
        """Wait for a reading of the stored catalog that begins after this call. Callers share it. Raises `Unavailable`."""
        if self._next_reading is None:
            self._next_reading = asyncio.ensure_future(self._read_catalog(self._reading))
        error = await asyncio.shield(self._next_reading)
        if error is not None:
            raise Unavailable(f"the host cannot find out now whether the queue exists: {error}; try again")

    async def _read_catalog(self, before: asyncio.Future[CatalogError | None] | None) -> CatalogError | None:
        """Read the stored catalog after the reading `before`. Return the error if that fails."""
        if before is not None:
            await asyncio.wait((before,))
        await asyncio.sleep(self._last_began_at_s + READ_INTERVAL_S - self._time_s())
        self._reading, self._next_reading = self._next_reading, None
        self._last_began_at_s = self._time_s()
        try:
            await self._admin.refresh()
        except CatalogError as error:
            return error
        return None


def _check_policy(topic: str, policy: PolicyRecord) -> None:
    """Check that the topic of a new FIFO queue has no policy of its own. Raises `SqsError`: the queue would replace it."""
    if policy not in (PolicyRecord(), PolicyRecord(fifo.GROUP_LEASES_MAX)):
        raise SqsError(
            "UnsupportedOperation",
            f"The topic {topic} has a policy already, which a FIFO queue would replace, and remove when it is deleted. Use "
            f"another name, or remove the policy first: foqs topic policy {topic} --remove",
        )
