"""The asynchronous client.

Holds the connections and a namespace. Always true:

- A call ends by its deadline, or shortly after it if only the reply is late.
- Only items with a key and calls by id are sent twice.
- A call that was sent and got no reply ends as `UnknownOutcome` if it may have
  written, and as `Unreachable` if it only reads.
- The client obeys `retry_after_ms`, unless the next attempt uses another shard. If
  the call has less time than that, the caller gets the error at once. The caller
  also gets `RateLimited` at once.
- Small calls that several callers make in one turn of the event loop are sent as
  one. An error of one caller never reaches the others.
- It is safe to cancel a call. Its reply is dropped. The host ends a dequeue whose
  caller has left, and items that still arrive for it are released.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random, SystemRandom
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TypeAlias

from foqs_client import conversion, errors
from foqs_client.abandoned_dequeues import AbandonedDequeues
from foqs_client.addresses import is_tls_url, parse_addresses
from foqs_client.admin_calls import AdminCalls
from foqs_client.automatic_keys import AutomaticKeys, RetriedAtomicEnqueue, RetriedEnqueue
from foqs_client.best_priorities import BestPriorities
from foqs_client.bulk_calls import BulkCalls
from foqs_client.bulk_job_calls import BulkJobCalls
from foqs_client.call_spans import CallSpans
from foqs_client.cluster_calls import ClusterCalls
from foqs_client.coalescing import Coalescer
from foqs_client.completing_calls import CompletingCalls
from foqs_client.connection_pool import ConnectionPool
from foqs_client.credentials import Tls, make_handshake, tls_connect
from foqs_client.dequeue_method import DequeueMethod
from foqs_client.host_connector import Connect
from foqs_client.long_polls import LongPolls
from foqs_client.moving_calls import MovingCalls
from foqs_client.reading_calls import ReadingCalls
from foqs_client.releases import Releases
from foqs_client.retried_calls import RetriedCallById, RetriedDeletion
from foqs_client.routed_dequeue import DequeueParts, RoutedDequeue
from foqs_client.router import Router
from foqs_client.routing_table import Address
from foqs_client.shared_dequeues import SharedDequeues
from foqs_client.tracing import make_tracing
from foqs_client.types import Change, Deliveries, Delivery, Enqueued, Item, Nack, Outcome
from foqs_contract.idl import ttypes
from foqs_contract.thrift_method import ThriftMethod

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

TIMEOUT_MS_DEFAULT: Final = 10_000
RELEASE_S_MAX: Final = 1.0
"""How long `close` waits for items to give back. Other leases end by themselves."""
COMMIT_TIMEOUT_MS: Final = 30_000
"""The time of a write that no caller waits for. With a slow database, a flush waits long for the one before it."""
Lease: TypeAlias = Delivery | tuple[str, int]
"""A delivery, or its (id, token)."""


class Client(BulkCalls, CompletingCalls, MovingCalls, ReadingCalls, AdminCalls, ClusterCalls, BulkJobCalls):
    """The client of a cluster or of a single host, for code in an event loop.

    It connects with the first call, and connects again when a connection is lost.
    Use it as `async with Client("foqs://127.0.0.1:7411") as client:`.

    Every method takes `timeout_ms`, the time of the whole call with its retries. Every
    method raises `FoqsError`. Results for single entries are in the order of the entries.

    Args:
        url: `foqs://host:port,host:port`, or `foqss://` for TLS. The default port is 7411.
        namespace: the namespace of every call.
        timeout_ms: the time of a call that sets none, in milliseconds.
        connections: the maximum number of connections to each host, 1 to 64. A call uses the one with
            the fewest calls in flight. One is enough, except for large payloads on slow lines.
        automatic_keys: give each item that has no idempotency key a key of its own. A retried
            enqueue then never makes a second item. The host stores a row for each key until
            the key window ends. False: items without a key are sent once.
        token: the secret of the client's principal. Hosts without authentication ignore it.
        token_file: a file whose first line is the token. Only its owner may have access. It is
            read for each new connection.
        region: the region of the client, as in the hosts' option `server.region`. Hosts of
            this region get its new items while they have room. None: all hosts are equal.
        tls: for `foqss://`: the CA file and the client's certificate, or an `ssl.SSLContext`.
            None: the CAs of the system.
        coalesce: send small calls of one kind that are made in one turn of the event loop as
            one call. Each caller gets its own results, and no call waits for others. False:
            each call is sent alone.
        tracing: make spans with the global tracer provider of OpenTelemetry, if the program has
            set one; or a tracer provider. Items carry the context of the span that enqueued them.
        connect: opens connections instead of the event loop's `create_connection`.
        rng: makes keys, chooses hosts and spreads pauses. None: the system's randomness.

    Attributes:
        tracing: makes the spans; None without.

    Raises:
        InvalidArgument: the URL is malformed, a file cannot be used, or `connections` is out of range.
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
        tracing: bool | TracerProvider = True,
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
        handshake = make_handshake(token, token_file, certified)
        self._pool = ConnectionPool(addresses, connections, connect, handshake)
        self._rng = rng = rng or SystemRandom()
        self._router = Router(
            self._pool,
            addresses,
            lambda address: ConnectionPool([address], connections, connect, handshake),
            self._fetch_routing,
            follow=len(addresses) > 1,
            region=region,
            rng=rng,
        )
        self._releases = Releases(self._release_surplus)
        self._abandoned_dequeues = AbandonedDequeues(_DEQUEUE)
        self._late_dequeue_reply = self._abandoned_dequeues.late_reply(self._releases.start)
        self._is_closed = False
        self._polls = LongPolls(self._releases)
        self._coalescer = Coalescer() if coalesce else None
        self._shared_dequeues = (
            SharedDequeues(self._coalescer, self._releases.start) if self._coalescer is not None else None
        )
        self._best_priorities = BestPriorities()
        self._dequeue_parts = DequeueParts(
            self._polls,
            self._best_priorities,
            self._router,
            self._pool,
            lambda *arguments: self._dequeue_from(*arguments),
            lambda *arguments: self._dequeue_from(*arguments, for_tier=True),
        )
        self._automatic_keys = AutomaticKeys(rng, self._router.next_slot, namespace) if automatic_keys else None
        self.tracing = make_tracing(tracing, namespace, addresses[0] if len(addresses) == 1 else None)
        self._spans = None if self.tracing is None else CallSpans(self.tracing)

    @property
    def is_connected(self) -> bool:
        """Whether a connection to one of the named hosts is open."""
        return self._pool.is_connected

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Calls in flight end as if the connection was lost.

        Hosts end the dequeues in flight first, and items that still arrive are released; that takes at most a second.
        """
        self._is_closed = True
        await self._polls.close()
        self._router.hand_over_calls()
        until_s = asyncio.get_running_loop().time() + RELEASE_S_MAX
        await self._abandoned_dequeues.wait_ended(until_s)
        await self._releases.finish(until_s)
        await self._router.close()
        if self._coalescer is not None:
            await self._coalescer.close()

    # --------------------------------------------------- enqueue, dequeue, settle

    async def enqueue(
        self, items: Sequence[Item], *, atomic: bool = False, timeout_ms: int | None = None
    ) -> list[Enqueued]:
        """Add items. Return one result for each, in order. An item with an id is durable.

        The client retries items that have a key, their own or an automatic one, until
        the call's time ends: after `Unavailable`, `Overloaded`, `NotOwner`,
        `UnknownOutcome` and a lost connection. An item that may have been written ends
        with its id or as `UnknownOutcome`. A key that was used before for the same item
        returns the first id, marked as `repeated`.

        Example: `ids = [result.require() for result in await client.enqueue([Item("mail", b"hello")])]`

        Args:
            atomic: all items are written in one transaction of one shard, or none is. Each result has an id, or the
                call raises; after `UnknownOutcome` either all items are written or none. Either all items have an
                idempotency key or none, and the keys must belong to one shard.
        """
        if not items:
            return []
        checked = conversion.items(items)
        if timeout_ms is None:
            timeout_ms = self.timeout_ms
        if self._spans is None:
            return await self._enqueue(checked, timeout_ms, atomic)
        with self._spans.send(checked) as call:
            results = await self._enqueue(call.items, timeout_ms, atomic)
            call.on_results(results)
            return results

    async def _enqueue(self, checked: Sequence[Item], timeout_ms: int, atomic: bool) -> list[Enqueued]:
        self._router.refresh_if_due()
        begun_s = asyncio.get_running_loop().time()
        send = self._send_atomic_items if atomic else self._send_items_coalesced
        sent, first = await send(checked, timeout_ms)
        if not isinstance(first, errors.FoqsError) and [result.error for result in first].count(None) == len(checked):
            return first
        attempts = (RetriedAtomicEnqueue if atomic else RetriedEnqueue)(checked, sent, self._automatic_keys)
        resend = self._resend_atomic_items if atomic else self._resend_items
        return await attempts.retry_until_done(
            first, resend, begun_s, timeout_ms, self._pool.sleep_unless_closed, self._rng
        )

    async def dequeue(
        self,
        wants: Mapping[str, int],
        *,
        wait_ms: int = 0,
        lease_ms: int | None = None,
        items_max: int | None = None,
        run_max: int = 1,
        timeout_ms: int | None = None,
    ) -> Deliveries:
        """Lease the best items of topics: at most `wants[topic]` of each topic.

        Each item must be acked, nacked or released before its lease ends; otherwise it is
        delivered again. Returns an empty list if there is no item; its `unavailable_shards` says how
        many shards may hold some that they cannot deliver. The call is not sent twice. If it is
        cancelled, or ends before the reply arrives, items that arrive later are released. If the
        connection is lost, they come back when their leases end.

        Raises:
            Unavailable: there may be items, but no shard that may hold them could deliver when the
                wait ended.

        Args:
            wants: the number of items to lease, by topic.
            wait_ms: how long to wait for an item if there is none.
            lease_ms: replaces the lease durations of the items.
            items_max: the maximum number of items of all topics together. The first topics are served first.
            run_max: the maximum number of items of a strict group together, 1 to 100. They follow each other in the list:
                handle them in this order, and stop at the first one that fails: those behind it are ready again, and their
                leases are over. Other topics ignore it.
            timeout_ms: the time of the call; None: the client's timeout, plus `wait_ms`.
        """
        if timeout_ms is None:
            timeout_ms = self.timeout_ms + max(0, wait_ms)
        if self._spans is None:
            found = await self._dequeue(wants, wait_ms, lease_ms, items_max, timeout_ms, run_max)
            return found if isinstance(found, Deliveries) else Deliveries(found)
        with self._spans.receive() as call:
            found = await self._dequeue(wants, wait_ms, lease_ms, items_max, timeout_ms, run_max)
            call.deliveries = deliveries = found if isinstance(found, Deliveries) else Deliveries(found)
            return deliveries

    async def _dequeue(
        self,
        wants: Mapping[str, int],
        wait_ms: int,
        lease_ms: int | None,
        items_max: int | None,
        timeout_ms: int,
        run_max: int,
    ) -> list[Delivery]:
        self._router.refresh_if_due()
        if self._router.is_first_refresh_running:
            # Without a routing table the call would miss the items of all other hosts.
            waited_ms = await self._router.wait_refreshed_within(timeout_ms)
            if waited_ms:
                wait_ms, timeout_ms = max(0, wait_ms - waited_ms), max(1, timeout_ms - waited_ms)
        if self._router.routing_table is not None:
            dequeue = RoutedDequeue(self._dequeue_parts, wants, wait_ms, lease_ms, items_max, timeout_ms, run_max)
            return await dequeue.run()

        async def ask(wants: Mapping[str, int], wait_ms: int, timeout_ms: int) -> Deliveries:
            return await self._dequeue_from(None, wants, wait_ms, lease_ms, items_max, timeout_ms, run_max)

        if self._shared_dequeues is None or items_max is not None or run_max != 1:
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
        run_max: int,
        *,
        for_tier: bool = False,
    ) -> Deliveries:
        """Dequeue with one call to one host. Raises FoqsError.

        Args:
            host: the host to call; None calls any host, which also asks the others.
            for_tier: whether a given host asks the others, too.
        """
        if self._is_closed:
            raise errors.Unreachable("the client is closed; make a new one")
        topics = [ttypes.TopicCount(topic, count) for topic, count in wants.items()]
        request = ttypes.DequeueRequest(self.namespace, topics, wait_ms=wait_ms, lease_ms=lease_ms, items_max=items_max)
        if run_max != 1:
            request.run_max = run_max
        if host is None or for_tier:
            reply = await self._call(_DEQUEUE, request, timeout_ms, host, self._late_dequeue_reply)
            return Deliveries(reply.items or (), reply.unavailable_shards or 0)
        # The client itself asks all hosts, and knows best what it has dequeued from each.
        request.local_only = True
        reply = await self._call(_DEQUEUE, request, timeout_ms, host, self._late_dequeue_reply)
        deliveries = Deliveries(reply.items or (), reply.unavailable_shards or 0)
        now = asyncio.get_running_loop().time()
        self._best_priorities.on_dequeue_reply(host, wants, reply.availability, now, has_items=bool(deliveries))
        return deliveries

    def _release_unread(self, deliveries: Sequence[Delivery]) -> None:
        """Release the items of a dequeue whose caller did not read them."""
        self._releases.start(deliveries)

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

    # Calls by id are retried as enqueues with a key are. A repeat is safe: a second ack or
    # cancel changes nothing. Most others name a lease by its token, and no token is used twice. A
    # second update sets what the first one set, and a second extension without a token adds time.

    async def ack(self, leases: Sequence[Lease], *, timeout_ms: int | None = None) -> list[Outcome]:
        """Delete delivered items, because the work on them is done.

        The client retries the call until its time ends. After a retry, `already_gone` may
        mean that the first attempt deleted the item. A lease that was replaced is `StaleLease`.
        """
        return await self._settle(
            leases, _ACK, ttypes.AckRequest, conversion.leases(leases), RetriedDeletion, timeout_ms
        )

    async def nack(self, nacks: Sequence[Nack | Lease], *, timeout_ms: int | None = None) -> list[Outcome]:
        """Return items whose work failed: they are delivered again later, or are dead.

        A delivery, or its (id, token), is delivered again after the namespace's backoff. A
        `Nack` can set a time, or `dead`. The client retries the call until its time ends; a
        delay counts from the attempt that was written. If a retry finds that the lease has
        ended, the result is `UnknownOutcome`.
        """
        return await self._settle(
            nacks, _NACK, ttypes.NackRequest, conversion.nacks(nacks), RetriedCallById, timeout_ms
        )

    async def extend(
        self, leases: Sequence[Lease], *, lease_ms: int | None = None, timeout_ms: int | None = None
    ) -> list[Outcome]:
        """Make leases end `lease_ms` from now; None: after the lease duration of each item.

        The client retries the call until its time ends; the new lease counts from the last
        attempt. If a retry finds that the lease has ended, the result is `UnknownOutcome`.
        """
        extensions = [ttypes.Extension(lease.id, lease.token, lease_ms) for lease in conversion.leases(leases)]
        return await self._call_by_id(_EXTEND, ttypes.ExtendLeaseRequest, extensions, RetriedCallById, timeout_ms)

    async def release(self, leases: Sequence[Lease], *, timeout_ms: int | None = None) -> list[Outcome]:
        """Return items that were not worked on: they are ready again, and no attempt is counted.

        The client retries the call until its time ends. If a retry finds that the lease has
        ended, the result is `UnknownOutcome`.
        """
        return await self._settle(
            leases, _RELEASE, ttypes.ReleaseRequest, conversion.leases(leases), RetriedCallById, timeout_ms
        )

    async def cancel(self, ids: Sequence[str], *, timeout_ms: int | None = None) -> list[Outcome]:
        """Delete items in any state. The client retries the call as it does `ack`."""
        return await self._call_by_id(_CANCEL, ttypes.CancelRequest, list(ids), RetriedDeletion, timeout_ms)

    async def update(self, ids: Sequence[str], change: Change, *, timeout_ms: int | None = None) -> list[Outcome]:
        """Change the priority, the deliver-after time or the metadata of items.

        The time of leased and dead items cannot be changed. The client retries the call
        until its time ends; a delay counts from the last attempt.
        """
        raw = conversion.change(change)
        return await self._call_by_id(
            _UPDATE, lambda name, ids: ttypes.UpdateRequest(name, ids, raw), list(ids), RetriedCallById, timeout_ms
        )

    async def extend_held_leases(
        self, ids: Sequence[str], *, lease_ms: int | None = None, timeout_ms: int | None = None
    ) -> list[Outcome]:
        """Make the leases of these items last until `lease_ms` from now at least, without their tokens: for administrators.

        None: the lease duration of each item. The consumer of an item keeps it, with its token. An
        item that is not leased is `StaleLease`. The client retries the call as it does `extend`.
        """
        return await self._call_by_id(
            _EXTEND_HELD,
            lambda name, ids: ttypes.ExtendHeldLeasesRequest(name, ids, lease_ms),
            list(ids),
            RetriedCallById,
            timeout_ms,
        )

    async def redrive(self, ids: Sequence[str], *, timeout_ms: int | None = None) -> list[Outcome]:
        """Make dead items ready again. Their attempts and their TTL start again.

        The client retries the call until its time ends. If a retry finds an item that is
        not dead, its result is `UnknownOutcome`.
        """
        return await self._call_by_id(_REDRIVE, ttypes.RedriveRequest, list(ids), RetriedCallById, timeout_ms)


_DEQUEUE: Final = DequeueMethod()
_ACK: Final = ThriftMethod("ack")
_NACK: Final = ThriftMethod("nack")
_EXTEND: Final = ThriftMethod("extendLease")
_RELEASE: Final = ThriftMethod("release")
_CANCEL: Final = ThriftMethod("cancel")
_UPDATE: Final = ThriftMethod("update")
_EXTEND_HELD: Final = ThriftMethod("extendHeldLeases")
_REDRIVE: Final = ThriftMethod("redrive")
