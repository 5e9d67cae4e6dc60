"""The asynchronous client.

Holds connections and a namespace. Always true: a call ends by its deadline,
and shortly after where only the reply is late; nothing is sent twice but items
with a key and calls by id; a call that was sent and not answered ends as
`UnknownOutcome` when it may have written, as `Unreachable` when it only reads.
`retry_after_ms` is obeyed, but where the next attempt goes to another shard; an
error that names a later time than the call has is the caller's at once, as is
`RateLimited`. Small calls that several callers make in one turn of the event
loop are sent as one; an error of one is never the others'. Cancelling a call is
safe: its reply is dropped, and items it would have delivered come back when
their leases end, or at once where others asked with it.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random, SystemRandom
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

from foqs_client import conversion, errors
from foqs_client.addresses import is_tls_url, parse_addresses
from foqs_client.admin_calls import AdminCalls
from foqs_client.automatic_keys import AutomaticKeys, RetriedEnqueue
from foqs_client.best_priorities import BestPriorities
from foqs_client.cluster_calls import ClusterCalls
from foqs_client.coalescing import Coalescer
from foqs_client.connection_pool import ConnectionPool
from foqs_client.credentials import Tls, make_handshake, tls_connect
from foqs_client.host_connector import Connect
from foqs_client.idl import ttypes
from foqs_client.long_polls import POLL_MS_MAX, DequeueKind, LongPolls
from foqs_client.retried_calls import BACKOFF_S_MAX, RetriedCallById, RetriedDeletion
from foqs_client.routed_calls import GET_ROUTING, REPLY_GRACE_S, RoutedCalls
from foqs_client.router import Router
from foqs_client.routing_table import Address
from foqs_client.shared_dequeues import SharedDequeues
from foqs_client.thrift_messages import ThriftMethod
from foqs_client.types import (
    BulkPage,
    Change,
    Delivery,
    Enqueued,
    Explanation,
    Item,
    ItemCount,
    ItemFilter,
    ItemPage,
    ItemView,
    Nack,
    Outcome,
    Routing,
    TopicPage,
)

TIMEOUT_MS_DEFAULT: Final = 10_000
COMMIT_TIMEOUT_MS: Final = 30_000
"""The time of a write that no caller waits for: a slow database needs it, where a flush waits for the one under way."""
Lease: TypeAlias = Delivery | tuple[str, int]
"""A delivery, or its (id, token)."""


class Client(RoutedCalls, AdminCalls, ClusterCalls):
    """A queue, over one or more connections.

    Opened when calls need them, and again after a loss. Use it as
    `async with Client("foqs://127.0.0.1:7411") as client:`.

    Args:
        url: `foqs://host:port,host:port`, `foqss://` with TLS; the port may be left out (7411).
        namespace: the namespace of every call.
        timeout_ms: the time of a call that names none.
        connections: at most so many to the host, 1 to 64; each call takes the one with
            the fewest under way. One is enough but for large payloads over slow lines.
        automatic_keys: every item without an idempotency key gets one that is its
            own, so that an enqueue may be tried again, also when it may have been
            written, without making a second item. It costs the host a row for each
            item for a while; False: such items are sent once.
        token: the secret of the principal that the client is. Hosts that ask nobody
            who he is do not mind it.
        token_file: a file whose first line is the token, and which nobody else may
            read. It is read for every new connection.
        region: where the client runs, as hosts name theirs (`server.region`): hosts of it get
            its new items while they have room. None: all hosts are alike.
        tls: with `foqss://`, files in place of the system's CAs, and the client's own
            certificate; or a context of the caller's.
        coalesce: small calls of one kind that are made in the same turn of the event loop,
            by several callers, are sent as one, and each caller gets its own results. It
            saves most of what a call costs and delays none. False: each is sent as it was made.
        rng: makes keys, and spreads calls and the pauses between their attempts; the system's randomness unless given.
        connect: opens connections in place of the loop's `create_connection`.

    Raises:
        InvalidArgument: the URL is not of this form, a file cannot be used, or there are too many connections.
    """

    def __init__(
        self,
        url: str,
        *,
        namespace: str = "default",
        timeout_ms: int = TIMEOUT_MS_DEFAULT,
        connections: int = 1,
        automatic_keys: bool = True,
        coalesce: bool = True,
        token: str | None = None,
        token_file: str | Path | None = None,
        region: str | None = None,
        tls: Tls | ssl.SSLContext | None = None,
        connect: Connect | None = None,
        rng: Random | None = None,
    ) -> None:
        self.namespace = namespace
        self.timeout_ms = timeout_ms
        addresses = parse_addresses(url)
        if is_tls_url(url):
            tls = tls or Tls()
            connect = connect or tls_connect(tls.context() if isinstance(tls, Tls) else tls)
        elif tls is not None:
            raise errors.InvalidArgument("this address is without TLS; begin it with foqss://", field="tls")
        certified = isinstance(tls, Tls) and tls.cert_file is not None
        greet = make_handshake(token, token_file, certified)
        self._pool = ConnectionPool(addresses, connections, connect, greet)
        self._rng = rng = rng or SystemRandom()
        self._router = Router(
            self._pool,
            addresses,
            lambda address: ConnectionPool([address], connections, connect, greet),
            self._fetch_routing,
            follow=len(addresses) > 1,
            region=region,
            rng=rng,
        )
        self._polls = LongPolls(self._release_surplus)
        self._coalescer = Coalescer() if coalesce else None
        self._shared_dequeues = (
            SharedDequeues(self._coalescer, self._polls.release_in_background) if self._coalescer is not None else None
        )
        self._best_priorities = BestPriorities()
        self._automatic_keys = AutomaticKeys(rng, self._router.next_slot) if automatic_keys else None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections. Calls under way end as after their loss."""
        await self._polls.close()
        await self._router.close()
        if self._coalescer is not None:
            await self._coalescer.close()

    # ---------------------------------------------------------- the way of items

    async def enqueue(self, items: Sequence[Item], *, timeout_ms: int | None = None) -> list[Enqueued]:
        """Adds items; a result for each, in order. An id means that the item is durable.

        Items with a key, the caller's or an automatic one, are tried again until the
        call's time is over, as long as they may still be written: after `Unavailable`,
        `Overloaded`, `NotOwner`, `UnknownOutcome` and the loss of the connection. What
        may have been written ends as `UnknownOutcome` or with its id. A key that was
        used before brings the first id, marked as `repeated`.
        """
        if not items:
            return []
        self._router.refresh_if_due()
        given = conversion.items(items)
        if timeout_ms is None:
            timeout_ms = self.timeout_ms
        begun = asyncio.get_running_loop().time()
        sent, first = await self._send_items_coalesced(given, timeout_ms)
        if not isinstance(first, errors.FoqsError) and [result.error for result in first].count(None) == len(given):
            return first
        attempts = RetriedEnqueue(given, sent, self._automatic_keys)
        return await attempts.retry_until_done(
            first, self._resend_items, begun, timeout_ms, self._pool.sleep_unless_closed, self._rng
        )

    async def dequeue(
        self,
        wants: Mapping[str, int],
        *,
        wait_ms: int = 0,
        lease_ms: int | None = None,
        items_max: int | None = None,
        timeout_ms: int | None = None,
    ) -> list[Delivery]:
        """Leases the best items of topics: at most `wants[topic]` of each.

        Args:
            items_max: of all topics together; topics that are named first are served first.
            wait_ms: how long to wait for an item when there is none.
            lease_ms: overrides the items' own lease durations.
            timeout_ms: where not given, the client's own on top of `wait_ms`.
        """
        self._router.refresh_if_due()
        if timeout_ms is None:
            timeout_ms = self.timeout_ms + max(0, wait_ms)
        if self._router.is_first_refresh_running:
            # What is ready, or comes, at other hosts than the first would not be seen.
            took_ms = await self._router.wait_refreshed_within(timeout_ms)
            if took_ms:
                wait_ms, timeout_ms = max(0, wait_ms - took_ms), max(1, timeout_ms - took_ms)
        if self._router.routing_table is not None:
            return await self._dequeue_from_any(wants, wait_ms, lease_ms, items_max, timeout_ms)

        async def ask(wants: Mapping[str, int], wait_ms: int, timeout_ms: int) -> list[Delivery]:
            return await self._dequeue_from(None, wants, wait_ms, lease_ms, items_max, timeout_ms)

        if self._shared_dequeues is None or items_max is not None:
            return await ask(wants, wait_ms, timeout_ms)
        return await self._shared_dequeues.dequeue(wants, wait_ms, lease_ms, timeout_ms, ask)

    async def _dequeue_from(
        self,
        host: Address | None,
        wants: Mapping[str, int],
        wait_ms: int,
        lease_ms: int | None,
        items_max: int | None,
        timeout_ms: int,
    ) -> list[Delivery]:
        topics = [ttypes.TopicCount(topic, count) for topic, count in wants.items()]
        request = ttypes.DequeueRequest(self.namespace, topics, wait_ms=wait_ms, lease_ms=lease_ms, items_max=items_max)
        if host is not None:
            request.local_only = (
                True  # the client asks all hosts, and knows better than they do what it has taken where
            )
        reply = await self._call(_DEQUEUE, request, timeout_ms, host)
        deliveries: list[Delivery] = reply.items or []
        if host is not None:
            now = asyncio.get_running_loop().time()
            self._best_priorities.on_dequeue_reply(host, wants, reply.heads, now, has_items=bool(deliveries))
        return deliveries

    async def _dequeue_from_any(
        self, wants: Mapping[str, int], wait_ms: int, lease_ms: int | None, items_max: int | None, timeout_ms: int
    ) -> list[Delivery]:
        """From the host that has the best, else from the next; who waits, waits at all of them."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        failure: errors.FoqsError | None = None
        wanted = DequeueKind(tuple(wants.items()), lease_ms, items_max, is_long_poll=True)
        now = wanted._replace(is_long_poll=False)
        slice_ms = min(wait_ms, POLL_MS_MAX)
        until = begun + min(wait_ms, timeout_ms) / 1_000
        answered_by = begun + timeout_ms / 1_000 + REPLY_GRACE_S

        async def ask(at: Address, wait_ms: int) -> list[Delivery]:
            # A slow host may take all of the call's time to commit leases.
            left_ms = max(1, timeout_ms - int((loop.time() - begun) * 1_000))
            return await self._dequeue_from(at, wants, wait_ms, lease_ms, items_max, left_ms)

        async def poll(at: Address) -> list[Delivery]:
            over = loop.time() + slice_ms / 1_000
            found = await ask(at, slice_ms)
            if not found and (early_s := over - loop.time()) > 0:
                await asyncio.sleep(min(early_s, BACKOFF_S_MAX))  # a host that stops answers at once, again and again
            return found

        async def look(at: Address) -> list[Delivery]:
            try:
                return await ask(at, 0)
            except _RETRYABLE_ELSEWHERE:
                self._best_priorities.on_dequeue_reply(at, wants, (), loop.time(), has_items=False)
                raise

        hosts = self._best_priorities.order(self._routed_hosts(), wants, begun)
        if wait_ms > 0:
            if self._polls.has_deliveries(wanted):
                found = await self._polls.poll_all(wanted, (), poll, answered_by)
                if found:
                    return found
            # Hosts that have nothing are not asked in vain: a poll waits there, and tells when something comes.
            for at in hosts:
                if self._best_priorities.is_known_empty(at, wants, begun):
                    self._polls.start_detached(wanted, at, poll)
            waited = self._polls.detached_hosts(wanted)
            hosts = [at for at in hosts if at not in waited]
        if hosts:
            try:
                found = await self._polls.poll_one_by_one(
                    now, hosts, look, self._router.on_unreachable, wait_for_slow=wait_ms <= 0
                )
            except _RETRYABLE_ELSEWHERE as error:
                failure = error
            else:
                if found:
                    return found
        while (left_ms := int((until - loop.time()) * 1_000)) > 0 and self._router.routing_table is not None:
            slice_ms = min(left_ms, POLL_MS_MAX)
            try:
                found = await self._polls.poll_all(wanted, self._routed_hosts(), poll, answered_by)
            except _RETRYABLE_ELSEWHERE as error:
                failure = error
                if not await self._pool.sleep_unless_closed(BACKOFF_S_MAX):
                    raise
                continue
            failure = None
            if found:
                return found
        if failure is None:
            return []
        if wait_ms <= 0 or self._router.routing_table is None or loop.time() >= begun + timeout_ms / 1_000:
            raise failure
        # A loop that stood still may run its timers first: patience and the wait are over, and answers are there unread.
        return await self._polls.poll_one_by_one(
            now, self._routed_hosts(), look, self._router.on_unreachable, wait_for_slow=True
        )

    def _routed_hosts(self) -> list[Address]:
        return [at for at in self._router.hosts() if at is not None]

    async def _release_surplus(self, deliveries: Sequence[Delivery]) -> None:
        outcomes = await self._call_by_id(
            _RELEASE,
            ttypes.ReleaseRequest,
            conversion.leases(deliveries),
            RetriedCallById,
            COMMIT_TIMEOUT_MS,
            immediate=True,
        )
        now = asyncio.get_running_loop().time()
        for delivery, outcome in zip(deliveries, outcomes, strict=True):
            at = self.owner(delivery.id)
            if outcome.error is None and at is not None:
                self._best_priorities.on_released(at, delivery.topic, delivery.priority, now)

    # Calls by id are tried again as enqueues with a key are. Repeating them is safe: an
    # ack or cancel that was done before finds nothing to do; the others name a lease that
    # they end, or that must not have ended, and a token is never given out twice.

    async def ack(self, leases: Sequence[Lease], *, timeout_ms: int | None = None) -> list[Outcome]:
        """Done: deletes the items. Tried again within its time, after which `already_gone` may be its own doing."""
        return await self._call_by_id(_ACK, ttypes.AckRequest, conversion.leases(leases), RetriedDeletion, timeout_ms)

    async def nack(self, nacks: Sequence[Nack | Lease], *, timeout_ms: int | None = None) -> list[Outcome]:
        """Not done: to be delivered again, or never (`dead`). A bare lease backs off by the namespace's policy.

        Tried again within its time; a delay then counts from the attempt that was
        written. An item is nacked once: a repeat that finds the lease over leaves the
        outcome unknown.
        """
        return await self._call_by_id(_NACK, ttypes.NackRequest, conversion.nacks(nacks), RetriedCallById, timeout_ms)

    async def extend(
        self, leases: Sequence[Lease], *, lease_ms: int | None = None, timeout_ms: int | None = None
    ) -> list[Outcome]:
        """The leases end `lease_ms` from now; None: after the items' own lease durations.

        Tried again within its time: the lease counts from the last attempt. A repeat
        that finds the lease over leaves the outcome unknown: it may have been extended
        and have ended since.
        """
        extensions = [ttypes.Extension(lease.id, lease.token, lease_ms) for lease in conversion.leases(leases)]
        return await self._call_by_id(_EXTEND, ttypes.ExtendLeaseRequest, extensions, RetriedCallById, timeout_ms)

    async def release(self, leases: Sequence[Lease], *, timeout_ms: int | None = None) -> list[Outcome]:
        """Not tried: gives items back without counting the attempt.

        Tried again within its time. An attempt is given back once: a repeat that finds
        the lease over leaves the outcome unknown.
        """
        return await self._call_by_id(
            _RELEASE, ttypes.ReleaseRequest, conversion.leases(leases), RetriedCallById, timeout_ms
        )

    async def cancel(self, ids: Sequence[str], *, timeout_ms: int | None = None) -> list[Outcome]:
        """Deletes items in any state. Tried again within its time, as `ack` is."""
        return await self._call_by_id(_CANCEL, ttypes.CancelRequest, list(ids), RetriedDeletion, timeout_ms)

    async def update(self, ids: Sequence[str], change: Change, *, timeout_ms: int | None = None) -> list[Outcome]:
        """Changes priority, time or metadata of items; of leased and dead ones no time.

        Tried again within its time: a delay counts from the last attempt.
        """
        changed = conversion.change(change)
        return await self._call_by_id(
            _UPDATE, lambda name, ids: ttypes.UpdateRequest(name, ids, changed), list(ids), RetriedCallById, timeout_ms
        )

    async def redrive(self, ids: Sequence[str], *, timeout_ms: int | None = None) -> list[Outcome]:
        """Makes dead items ready again, with fresh attempts and a fresh TTL.

        Tried again within its time: a repeat that finds an item not dead leaves the
        outcome unknown.
        """
        return await self._call_by_id(_REDRIVE, ttypes.RedriveRequest, list(ids), RetriedCallById, timeout_ms)

    # ------------------------------------------------------------------ by filter

    async def count(self, only: ItemFilter, *, timeout_ms: int | None = None) -> ItemCount:
        """How many items match."""
        request = ttypes.CountItemsRequest(self.namespace, conversion.item_filter(only))
        reply = await self._call(_COUNT, request, timeout_ms)
        return ItemCount(reply.items or 0, reply.payload_bytes)

    async def cancel_matching(
        self, only: ItemFilter, limit: int = 1_000, cursor: str | None = None, *, timeout_ms: int | None = None
    ) -> BulkPage:
        """Deletes a page of the items that match. A page that is repeated, here and below, does no harm."""
        return await self._bulk(ttypes.BulkAction.CANCEL, only, None, limit, cursor, timeout_ms)

    async def update_matching(
        self,
        only: ItemFilter,
        change: Change,
        limit: int = 1_000,
        cursor: str | None = None,
        *,
        timeout_ms: int | None = None,
    ) -> BulkPage:
        """Changes a page of the items that match. A delay counts from the first page."""
        return await self._bulk(ttypes.BulkAction.UPDATE, only, conversion.change(change), limit, cursor, timeout_ms)

    async def redrive_matching(
        self, only: ItemFilter, limit: int = 1_000, cursor: str | None = None, *, timeout_ms: int | None = None
    ) -> BulkPage:
        """Makes a page of the dead items that match ready again."""
        return await self._bulk(ttypes.BulkAction.REDRIVE, only, None, limit, cursor, timeout_ms)

    async def _bulk(
        self, action: Any, only: ItemFilter, change: Any, limit: int, cursor: str | None, timeout_ms: int | None
    ) -> BulkPage:
        request = ttypes.BulkRequest(
            self.namespace, conversion.item_filter(only), action, change, ttypes.Page(limit, cursor)
        )
        return conversion.bulk_page(await self._call(_BULK, request, timeout_ms))

    # -------------------------------------------------------------------- looking

    async def topics(
        self,
        prefix: str = "",
        states: Sequence[str] | None = None,
        limit: int = 100,
        cursor: str | None = None,
        *,
        timeout_ms: int | None = None,
    ) -> TopicPage:
        """Topics by name. `states` None: those with ready or leased items."""
        numbers = None if states is None else [conversion.state_number(state) for state in states]
        request = ttypes.GetActiveTopicsRequest(
            self.namespace, ttypes.TopicFilter(prefix or None, numbers), ttypes.Page(limit, cursor)
        )
        reply = await self._call(_TOPICS, request, timeout_ms)
        return TopicPage([conversion.topic(topic) for topic in reply.topics or ()], reply.next_cursor)

    async def item(self, id: str, *, with_payload: bool = False, timeout_ms: int | None = None) -> ItemView:
        """Looks at one item. Raises NotFound."""
        request = ttypes.GetItemRequest(self.namespace, id, with_payload)
        return conversion.item_view(await self._call_owner(_ITEM, request, timeout_ms))

    async def explain(self, id: str, *, with_payload: bool = False, timeout_ms: int | None = None) -> Explanation:
        """Why an item is not delivered, and what would change it; an answer too for one that is gone."""
        request = ttypes.GetItemRequest(self.namespace, id, with_payload)
        return conversion.explanation(await self._call_owner(_EXPLAIN, request, timeout_ms))

    async def peek(
        self,
        topic: str,
        state: str = "ready",
        limit: int = 20,
        cursor: str | None = None,
        *,
        with_payload: bool = False,
        timeout_ms: int | None = None,
    ) -> ItemPage:
        """Looks at a topic's items in one state, best first, without delivering them."""
        request = ttypes.PeekRequest(
            self.namespace, topic, conversion.state_number(state), ttypes.Page(limit, cursor), with_payload
        )
        reply = await self._call(_PEEK, request, timeout_ms)
        return ItemPage([conversion.item_view(view) for view in reply.items or ()], reply.next_cursor)

    async def dead(
        self,
        topic: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
        *,
        with_payload: bool = False,
        timeout_ms: int | None = None,
    ) -> ItemPage:
        """Looks at dead items, of a topic or of all. A page may be short and not be the last."""
        request = ttypes.ListDeadRequest(self.namespace, topic, ttypes.Page(limit, cursor), with_payload)
        reply = await self._call(_DEAD, request, timeout_ms)
        return ItemPage([conversion.item_view(view) for view in reply.items or ()], reply.next_cursor)

    async def routing(self, *, timeout_ms: int | None = None) -> Routing:
        """Hosts and shards."""
        return conversion.routing(await self._call(GET_ROUTING, ttypes.GetRoutingRequest(), timeout_ms))


_RETRYABLE_ELSEWHERE: Final = (errors.Unavailable, errors.Overloaded, errors.UnknownOutcome)
"""What one host answers to a dequeue that another may still fill; items that nobody received come back."""
_DEQUEUE: Final = ThriftMethod("dequeue", is_write=True, element_class=Delivery)
_ACK: Final = ThriftMethod("ack", is_write=True)
_NACK: Final = ThriftMethod("nack", is_write=True)
_EXTEND: Final = ThriftMethod("extendLease", is_write=True)
_RELEASE: Final = ThriftMethod("release", is_write=True)
_CANCEL: Final = ThriftMethod("cancel", is_write=True)
_UPDATE: Final = ThriftMethod("update", is_write=True)
_REDRIVE: Final = ThriftMethod("redrive", is_write=True)
_BULK: Final = ThriftMethod("bulk", is_write=True)
_COUNT: Final = ThriftMethod("countItems")
_DEAD: Final = ThriftMethod("listDead")
_TOPICS: Final = ThriftMethod("getActiveTopics")
_ITEM: Final = ThriftMethod("getItem")
_EXPLAIN: Final = ThriftMethod("explain")
_PEEK: Final = ThriftMethod("peek")
