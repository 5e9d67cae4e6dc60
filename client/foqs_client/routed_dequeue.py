"""One dequeue of a client that follows the routing table.

Holds `RoutedDequeue`. Always true: hosts are asked in the order of their best items; a
host without items is not asked again and again, because a long poll waits there; the
call ends by its deadline. It does no harm to ask two hosts, because items that are not
needed are released. Knows nothing of connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from foqs_client.best_priorities import BestPriorities
from foqs_client.connection_pool import ConnectionPool
from foqs_client.errors import FoqsError, Unavailable
from foqs_client.long_polls import POLL_MS_MAX, DequeueKind, LongPolls
from foqs_client.retried_calls import BACKOFF_S_MAX
from foqs_client.routed_calls import REPLY_GRACE_S
from foqs_client.router import Router
from foqs_client.routing_table import Address
from foqs_client.types import Deliveries, Delivery

TIER_HOSTS_MAX: Final = 2
"""The maximum number of hosts that are asked for the whole tier, in case that the first one has just died."""
IMPAIRMENTS_MAX: Final = 10_000
"""The maximum number of marks that `Impairments` keeps."""

DequeueFrom: TypeAlias = Callable[
    [Address, Mapping[str, int], int, int | None, int | None, int, int], Awaitable[Deliveries]
]
"""Dequeues from one host: (host, wants, wait_ms, lease_ms, items_max, timeout_ms, run_max)."""


class Impairments:
    """Marks of hosts that may have had items of some topics and did not deliver them in the last dequeue of these topics.

    An outage of one topic says nothing about another one, so each mark is of a host and the topics of a dequeue. Only
    a later dequeue of the same topics removes it. The oldest marks are forgotten.
    """

    def __init__(self) -> None:
        self._marks: dict[tuple[Address, tuple[str, ...]], None] = {}

    def mark(self, host: Address, topics: tuple[str, ...]) -> None:
        self._marks[host, topics] = None
        if len(self._marks) > IMPAIRMENTS_MAX:
            del self._marks[next(iter(self._marks))]

    def on_empty_reply(self, host: Address, topics: tuple[str, ...], unavailable_shards: int) -> None:
        """Mark a host whose reply has no items and names unavailable shards; without such shards, remove its mark."""
        if unavailable_shards:
            self.mark(host, topics)
        else:
            self._marks.pop((host, topics), None)

    def is_marked(self, host: Address, topics: tuple[str, ...]) -> bool:
        return (host, topics) in self._marks


@dataclass(slots=True, frozen=True)
class DequeueParts:
    """The parts of a client that all its dequeues share.

    Attributes:
        dequeue_from: dequeues the items that the host itself has.
        dequeue_by: dequeues the items of the tier by one host.
    """

    polls: LongPolls
    best_priorities: BestPriorities
    router: Router
    pool: ConnectionPool
    dequeue_from: DequeueFrom
    dequeue_by: DequeueFrom
    impairments: Impairments = field(default_factory=Impairments)


class RoutedDequeue:
    """One dequeue; see `Client.dequeue` for the arguments."""

    def __init__(
        self,
        parts: DequeueParts,
        wants: Mapping[str, int],
        wait_ms: int,
        lease_ms: int | None,
        items_max: int | None,
        timeout_ms: int,
        run_max: int = 1,
    ) -> None:
        self._parts = parts
        self._wants = wants
        self._topics = tuple(wants)
        self._wait_ms = wait_ms
        self._timeout_ms = timeout_ms
        self._loop = asyncio.get_running_loop()
        self._begun_s = begun_s = self._loop.time()
        self._long_poll = DequeueKind(tuple(wants.items()), lease_ms, items_max, is_long_poll=True, run_max=run_max)
        self._short_poll = self._long_poll._replace(is_long_poll=False)
        self._slice_ms = min(wait_ms, POLL_MS_MAX)
        """The wait of the next poll."""
        self._wait_until_s = begun_s + min(wait_ms, timeout_ms) / 1_000
        self._reply_by_s = begun_s + timeout_ms / 1_000 + REPLY_GRACE_S

    async def run(self) -> list[Delivery]:
        """Return the items of the host that has the best one, else of the next host. A long poll waits at all hosts.

        If a host could not deliver and no other one had an item, one host dequeues for the whole tier; if it fails,
        a second one. The list is empty if no host had an item. Raises FoqsError.
        """
        found = await self._search()
        return found if found or not self._may_have_missed_items() else await self._ask_for_tier()

    def _may_have_missed_items(self) -> bool:
        """Return whether a shard may hold items that none of the asked hosts could deliver."""
        table = self._parts.router.routing_table
        return table is not None and (
            table.has_other_shards or len(self._hosts()) < len(table.hosts) or any(map(self._is_impaired, table.hosts))
        )

    def _is_impaired(self, host: Address) -> bool:
        return self._parts.impairments.is_marked(host, self._topics)

    async def _ask_for_tier(self) -> list[Delivery]:
        """Dequeue by a host that asks the others too, and that knows the state of the tier's shards. Raises FoqsError."""
        kind = self._short_poll
        failure: FoqsError | None = None
        hosts = sorted(self._hosts(), key=self._is_impaired)
        for at in hosts[:TIER_HOSTS_MAX]:
            try:
                return await self._parts.dequeue_by(
                    at, self._wants, 0, kind.lease_ms, kind.items_max, self._left_ms(), kind.run_max
                )
            except FoqsError as error:
                if not error.may_succeed_elsewhere:
                    raise
                failure = error
        raise failure or Unavailable("no host of the routing table can be asked now; try again")

    async def _search(self) -> list[Delivery]:
        polls = self._parts.polls
        failure: FoqsError | None = None
        hosts = self._parts.best_priorities.order(self._hosts(), self._wants, self._begun_s)
        if self._wait_ms > 0:
            if polls.has_deliveries(self._long_poll):
                found = await polls.poll_all(self._long_poll, (), self._poll, self._reply_by_s)
                if found:
                    return found
            hosts = self._without_polled(hosts)
        if hosts:
            try:
                found = await self._ask_one_by_one(hosts, wait_for_slow=self._wait_ms <= 0)
            except FoqsError as error:
                if not error.may_succeed_elsewhere:
                    raise
                failure = error
            else:
                if found:
                    return found
        found, failure = await self._poll_all_hosts(failure)
        if found or failure is None:
            return found
        is_over = self._loop.time() >= self._begun_s + self._timeout_ms / 1_000
        if self._wait_ms <= 0 or self._parts.router.routing_table is None or is_over:
            raise failure
        # An event loop that was blocked runs its timers first: the wait has ended while replies are still unread.
        return await self._ask_one_by_one(self._hosts(), wait_for_slow=True)

    def _hosts(self) -> list[Address]:
        return [at for at in self._parts.router.hosts() if at is not None]

    def _without_polled(self, hosts: Sequence[Address]) -> list[Address]:
        """Return the hosts without a long poll. Start one at each host that is known to have no items."""
        polls = self._parts.polls
        for at in hosts:
            if self._parts.best_priorities.is_known_empty(at, self._wants, self._begun_s):
                polls.start_detached(self._long_poll, at, self._poll)
        polled = polls.detached_hosts(self._long_poll)
        return [at for at in hosts if at not in polled]

    async def _poll_all_hosts(self, failure: FoqsError | None) -> tuple[list[Delivery], FoqsError | None]:
        """Poll all hosts while the call waits. Return the items, or why the last poll or an earlier call failed."""
        while (left_ms := int((self._wait_until_s - self._loop.time()) * 1_000)) > 0:
            if self._parts.router.routing_table is None:
                break
            self._slice_ms = min(left_ms, POLL_MS_MAX)
            try:
                found = await self._parts.polls.poll_all(self._long_poll, self._hosts(), self._poll, self._reply_by_s)
            except FoqsError as error:
                if not error.may_succeed_elsewhere:
                    raise
                failure = error
                pause_s = max(0.0, min(BACKOFF_S_MAX, self._wait_until_s - self._loop.time()))
                if not await self._parts.pool.sleep_unless_closed(pause_s):
                    raise
                continue
            failure = None
            if found:
                return found, None
        return [], failure

    async def _ask_one_by_one(self, hosts: Sequence[Address], *, wait_for_slow: bool) -> list[Delivery]:
        return await self._parts.polls.poll_one_by_one(
            self._short_poll, hosts, self._ask_now, self._on_slow, wait_for_slow=wait_for_slow
        )

    def _on_slow(self, at: Address) -> None:
        self._parts.impairments.mark(at, self._topics)
        self._parts.router.on_unreachable(at)

    async def _ask_now(self, at: Address) -> list[Delivery]:
        try:
            return await self._ask(at, 0)
        except FoqsError as error:
            if error.may_succeed_elsewhere:  # a dequeue does no harm twice: leased items come back
                now_s = self._loop.time()
                self._parts.best_priorities.on_dequeue_reply(at, self._wants, (), now_s, has_items=False)
            raise

    async def _poll(self, at: Address) -> list[Delivery]:
        slice_ends_s = self._loop.time() + self._slice_ms / 1_000
        found = await self._ask(at, self._slice_ms)
        if not found and (early_s := slice_ends_s - self._loop.time()) > 0:
            await asyncio.sleep(min(early_s, BACKOFF_S_MAX))  # a host that is stopping replies at once each time
        return found

    async def _ask(self, at: Address, wait_ms: int) -> list[Delivery]:
        # A slow host may need all of the call's time to commit the leases.
        kind, parts = self._long_poll, self._parts
        try:
            found = await parts.dequeue_from(
                at, self._wants, wait_ms, kind.lease_ms, kind.items_max, self._left_ms(), kind.run_max
            )
        except FoqsError as error:
            if error.may_succeed_elsewhere:
                parts.impairments.mark(at, self._topics)
            raise
        if not found:
            parts.impairments.on_empty_reply(at, self._topics, found.unavailable_shards)
        return found

    def _left_ms(self) -> int:
        return max(1, self._timeout_ms - int((self._loop.time() - self._begun_s) * 1_000))
