"""Routes one call to its host, sends it and returns the reply.

Holds `RoutedCalls`, which `Client` inherits. Always true: a call ends by its deadline,
or shortly after it if only the reply is late. A call that was sent and got no reply
ends as `UnknownOutcome` if it may have written, and as `Unreachable` if it only reads.
With a routing table, calls by id are sent to the host of the item's shard, and items
with a key to the host of the key's slot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from math import inf
from random import Random
from typing import Any, Final, TypeAlias, TypeVar

from thrift.Thrift import TApplicationException

from foqs_client import conversion, errors
from foqs_client.automatic_keys import MISSING_RESULT, AutomaticKeys
from foqs_client.call_spans import CallSpans
from foqs_client.coalescing import BYTES_PER_CALLER_MAX, ENTRIES_PER_CALLER_MAX, CallSize, Coalescer, SendResult
from foqs_client.connection_pool import ConnectionPool
from foqs_client.credentials import check_served
from foqs_client.enqueue_method import EnqueueMethod
from foqs_client.host_connection import LateReply, NoReply, NotSent, TlsRequired
from foqs_client.retried_calls import RetriedCallById
from foqs_client.router import CONNECT_S_MAX, Router
from foqs_client.routing_change import apply_routing_change
from foqs_client.routing_table import Address, TierRoutes, call_by_host
from foqs_client.types import DONE, Enqueued, Item, Nack, Outcome, Routing
from foqs_contract.contract_version import CONTRACT_VERSION, HostTooOld
from foqs_contract.errors import TemporaryRefusal
from foqs_contract.idl import ttypes
from foqs_contract.request import Request
from foqs_contract.thrift_method import Refused, ThriftMethod, Unencodable, Unreadable

REPLY_GRACE_S: Final = 1.5
"""A reply may arrive until this time after the deadline. The host ends every call within a second of it."""

GET_ROUTING: Final = ThriftMethod("getRouting")
_ANY_HOST: Final[Sequence[Address | None]] = (None,)
_R = TypeVar("_R")
MakeRequest: TypeAlias = Callable[[str, Sequence[Any]], Request]
"""(namespace, entries) -> the request of a call by id."""
_ENQUEUE: Final = EnqueueMethod("enqueue", element_class=Enqueued)


class RoutedCalls:
    """The base of the client's calls: sends each one to the host that should serve it.

    Attributes:
        namespace: the namespace of every call.
        timeout_ms: the time of a call that sets none, in milliseconds.
    """

    namespace: str
    timeout_ms: int
    _pool: ConnectionPool
    """Connects to the hosts that the client was given."""
    _spans: CallSpans | None
    _router: Router
    _automatic_keys: AutomaticKeys | None
    _rng: Random
    _coalescer: Coalescer | None
    """Coalesces small calls; None: every call is sent alone."""

    async def _fetch_routing(self, pool: ConnectionPool, known: Routing | None, timeout_ms: int) -> Routing:
        """Read the routing from a host; only the changes if a version is known."""
        request = ttypes.GetRoutingRequest(None if known is None else known.version, changes=known is not None)
        is_seed = pool is self._router.seed_pool
        reply = _decode_reply(
            GET_ROUTING,
            await self._round_trip(GET_ROUTING, request, timeout_ms, pool, CONNECT_S_MAX, retry_connect=is_seed),
        )
        routing = apply_routing_change(known, reply)
        return conversion.routing(reply) if routing is None else routing

    async def _call(
        self,
        method: ThriftMethod,
        request: Request,
        timeout_ms: int | None,
        host: Address | None = None,
        late_reply: LateReply | None = None,
    ) -> Any:
        """Make a call and return the reply's struct. Raises FoqsError."""
        return _decode_reply(method, await self._round_trip_to_host(method, request, timeout_ms, host, late_reply))

    async def _call_owner(self, method: ThriftMethod, request: Request, id: str, timeout_ms: int | None) -> Any:
        """Call the host of an item's shard. If that fails, call the shard's new owner, or any host, which forwards it."""
        self._router.refresh_if_due()
        if timeout_ms is None:
            timeout_ms = self.timeout_ms
        loop = asyncio.get_running_loop()
        begun_s, first = loop.time(), self.owner(id)
        try:
            return await self._call(method, request, timeout_ms, first)
        except errors.NotOwner:
            self._router.mark_stale()
        except errors.Unreachable:
            if first is None:
                raise
        left_ms = await self._router.refresh_for_retry(max(1, timeout_ms - int((loop.time() - begun_s) * 1_000)))
        second = self.owner(id)
        return await self._call(method, request, left_ms, None if second == first else second)

    async def _round_trip_to_host(
        self,
        method: ThriftMethod,
        request: Request,
        timeout_ms: int | None,
        host: Address | None,
        late_reply: LateReply | None = None,
    ) -> bytes:
        """Make a call and return the reply's body.

        A write to a host of the table that cannot be reached raises `Unavailable`: it can
        be retried at another host.
        """
        if host is None:
            return await self._round_trip(method, request, timeout_ms, self._pool, late_reply=late_reply)
        try:
            reply = await self._round_trip(
                method,
                request,
                timeout_ms,
                self._router.pool(host),
                CONNECT_S_MAX,
                retry_connect=False,
                late_reply=late_reply,
            )
        except errors.Unreachable as error:
            self._router.on_unreachable(host)
            if method.is_write:
                raise errors.Unavailable(f"nothing was sent: {error}") from None
            raise
        self._router.on_reached(host)
        return reply

    def owner(self, id: str) -> Address | None:
        """Return (host, port) of the host that owns an item's shard, as the client last read it; None if it is not known."""
        return None if self._router.routing_table is None else self._router.routing_table.owner(id)

    @property
    def hosts(self) -> Sequence[Address]:
        """(host, port) of each host of the routing table, as the client last read it. Empty while it knows one host only."""
        return () if self._router.routing_table is None else self._router.routing_table.hosts

    async def refresh_routing(self) -> None:
        """Read the routing table and use it from now on, as after `NotOwner`.

        Before the first calls it makes the client know all hosts. If no host can be
        read, the client keeps the table that it has.
        """
        await self._router.wait_refreshed()  # a read that has begun may miss the newest change
        self._router.mark_stale()
        await self._router.wait_refreshed()

    def _send_items_coalesced(self, items: Sequence[Item], timeout_ms: int) -> Awaitable[SendResult[Item, Enqueued]]:
        """Make the first attempt of an enqueue, coalesced with other calls. Their automatic keys share one slot."""

        async def ask(items: Sequence[Item]) -> SendResult[Item, Enqueued]:
            sent = items if self._automatic_keys is None else self._automatic_keys.with_keys(items)
            return sent, await _result_or_error(self._send_items(sent, timeout_ms))

        size = None if self._coalescer is None else _size_of_items(items)
        if self._coalescer is None or size is None:
            return ask(items)
        return self._coalescer.call((_ENQUEUE, timeout_ms), items, size, ask)

    async def _send_items(self, items: Sequence[Item], timeout_ms: int) -> list[Enqueued]:
        """Make one attempt of an enqueue."""
        table = self._router.routing_table
        try:
            if table is None:
                results = await self._send_items_to(None, items, timeout_ms)
            else:
                results = await call_by_host(
                    items,
                    lambda item: self._slot_owner(table, item),
                    lambda at, part: self._send_items_with_fallback(at, part, timeout_ms, self._send_items_to),
                    lambda error: Enqueued(error=error),
                )
        except errors.FoqsError as error:
            self._router.on_call_errors([error])
            raise
        if [result.error for result in results].count(None) < len(results):
            self._router.on_call_errors(result.error for result in results)
        return results

    def _slot_owner(self, table: TierRoutes, item: Item) -> Address | None:
        """Return the host of the slot to which an item belongs: of its group, else of its key; None: any host."""
        if item.group is not None:
            return table.group_owner(self.namespace, item.group)
        return None if item.idempotency_key is None else table.key_owner(item.idempotency_key)

    async def _send_atomic_items(self, items: Sequence[Item], timeout_ms: int) -> SendResult[Item, Enqueued]:
        """Make the first attempt of an atomic enqueue. Their automatic keys share one slot."""
        sent = items if self._automatic_keys is None else self._automatic_keys.with_joint_keys(items)
        return sent, await _result_or_error(self._send_items_together(sent, timeout_ms))

    async def _resend_atomic_items(self, items: Sequence[Item], timeout_ms: int) -> list[Enqueued]:
        """Make a later attempt of an atomic enqueue."""
        return await self._send_items_together(items, await self._router.refresh_for_retry(timeout_ms))

    async def _send_items_together(self, items: Sequence[Item], timeout_ms: int) -> list[Enqueued]:
        """Make one attempt of an atomic enqueue, at the owner of the first slot: the others belong to the same shard."""
        table = self._router.routing_table
        owners = () if table is None else [self._slot_owner(table, item) for item in items]
        owner = next((found for found in owners if found is not None), None)

        async def send_to(host: Address | None, items: Sequence[Item], timeout_ms: int) -> list[Enqueued]:
            return await self._send_known_items_to(host, items, timeout_ms, atomic=True)

        try:
            results = await self._send_items_with_fallback(owner, items, timeout_ms, send_to)
            if len(results) < len(items):
                raise errors.UnknownOutcome(
                    "the host's reply lacks results; either all items are written or none, so repeat the call with its keys"
                )
            return results
        except errors.FoqsError as error:
            self._router.on_call_errors([error])
            raise

    async def _resend_items(self, items: Sequence[Item], timeout_ms: int) -> list[Enqueued]:
        """Make a later attempt of an enqueue."""
        return await self._send_items(items, await self._router.refresh_for_retry(timeout_ms))

    async def _send_items_with_fallback(
        self,
        slot_owner: Address | None,
        items: Sequence[Item],
        timeout_ms: int,
        send_to: Callable[[Address | None, Sequence[Item], int], Awaitable[list[Enqueued]]],
    ) -> list[Enqueued]:
        """Send items to the host of their slot, or without one to the first host that accepts them. Raises FoqsError."""
        failure: errors.FoqsError | None = None
        for host in self._router.enqueue_hosts() if slot_owner is None else (slot_owner,):
            try:
                return await send_to(host, items, timeout_ms)
            except errors.FoqsError as error:
                if not error.retryable_elsewhere:
                    raise
                failure = failure or error
        assert failure is not None
        raise failure

    async def _send_items_to(self, host: Address | None, items: Sequence[Item], timeout_ms: int) -> list[Enqueued]:
        """Send items to a host. An item that an older host does not know fails alone."""
        try:
            return await self._send_known_items_to(host, items, timeout_ms)
        except HostTooOld as error:
            structs: Any = items
            request = ttypes.EnqueueRequest(self.namespace, structs)
            refused = _ENQUEUE.unserved_entries(request, error.served_version)
            if len(refused) in (0, len(items)):
                raise
        known = [item for place, item in enumerate(items) if place not in refused]
        results = iter(await self._send_items_to(host, known, timeout_ms))
        return [
            Enqueued(error=refused[place]) if place in refused else next(results, MISSING_RESULT)
            for place in range(len(items))
        ]

    async def _send_known_items_to(
        self, host: Address | None, items: Sequence[Item], timeout_ms: int, *, atomic: bool = False
    ) -> list[Enqueued]:
        structs: Any = items  # the encoder reads their fields by name
        request = ttypes.EnqueueRequest(self.namespace, structs, atomic=atomic or None)
        if host is None:
            return conversion.enqueued((await self._call(_ENQUEUE, request, timeout_ms)).results)
        loads, count = self._router.loads, len(items)
        loads.add_in_flight(host, count)
        try:
            results = conversion.enqueued((await self._call(_ENQUEUE, request, timeout_ms, host)).results)
        except TemporaryRefusal:
            loads.on_refused(host, asyncio.get_running_loop().time())
            raise
        finally:
            loads.remove_in_flight(host, count)
        if any(isinstance(result.error, TemporaryRefusal) for result in results if result.error is not None):
            loads.on_refused(host, asyncio.get_running_loop().time())
        return results

    async def _settle(
        self,
        entries: Sequence[Any],
        method: ThriftMethod,
        make_request: MakeRequest,
        raw_entries: list[Any],
        retry_class: type[RetriedCallById],
        timeout_ms: int | None,
    ) -> list[Outcome]:
        """Make an ack, a nack or a release, in a span if there are spans.

        Args:
            entries: the entries as the caller gave them; `raw_entries` are the entries of the request.
        """
        if self._spans is None or not entries:
            return await self._call_by_id(method, make_request, raw_entries, retry_class, timeout_ms)
        with self._spans.settle(method.name, entries) as call:
            outcomes = await self._call_by_id(method, make_request, raw_entries, retry_class, timeout_ms)
            call.on_results(outcomes)
            return outcomes

    async def _call_by_id(
        self,
        method: ThriftMethod,
        make_request: MakeRequest,
        entries: list[Any],
        retry_class: type[RetriedCallById],
        timeout_ms: int | None,
        *,
        immediate: bool = False,
    ) -> list[Outcome]:
        """Make a call by id. Return an outcome for each entry; makes no call without entries.

        Args:
            immediate: send it in this turn of the event loop, without coalescing.
        """
        if not entries:
            return []
        self._router.refresh_if_due()
        if timeout_ms is None:
            timeout_ms = self.timeout_ms
        begun_s = asyncio.get_running_loop().time()
        size = None if self._coalescer is None or immediate else _size_of_entries(entries)
        hosts = (
            _ANY_HOST
            if self._router.routing_table is None or size is None
            else list({self.owner(id) for id in size[2]})
        )
        first: list[Outcome] | errors.FoqsError
        if self._coalescer is None or size is None or len(hosts) > 1:
            first = await _result_or_error(self._send_entries(method, make_request, entries, timeout_ms))
        else:
            at = hosts[0]

            async def ask(entries: Sequence[Any]) -> SendResult[Any, Outcome]:
                return entries, await _result_or_error(
                    self._send_entries_to(at, method, make_request, entries, timeout_ms)
                )

            _, first = await self._coalescer.call((method, make_request, at, timeout_ms), entries, size, ask)
        if isinstance(first, errors.FoqsError):
            self._router.on_call_errors([first])
        else:
            failures = [outcome.error for outcome in first if outcome.error is not None]
            if not failures and len(first) == len(entries):
                return first
            self._router.on_call_errors(failures)

        async def resend(entries: Sequence[Any], timeout_ms: int) -> list[Outcome]:
            left_ms = await self._router.refresh_for_retry(timeout_ms)
            outcomes = await self._send_entries(method, make_request, entries, left_ms)
            self._router.on_call_errors(outcome.error for outcome in outcomes)
            return outcomes

        return await retry_class(entries).retry_until_done(
            first, resend, begun_s, timeout_ms, self._pool.sleep_unless_closed, self._rng
        )

    async def _send_entries(
        self, method: ThriftMethod, make_request: MakeRequest, entries: Sequence[Any], timeout_ms: int
    ) -> list[Outcome]:
        """Make one attempt of a call by id."""
        table = self._router.routing_table
        if table is None:
            return await self._send_entries_to(None, method, make_request, entries, timeout_ms)
        return await call_by_host(
            entries,
            lambda entry: table.owner(entry if type(entry) is str else entry.id),
            lambda at, part: self._send_entries_to(at, method, make_request, part, timeout_ms),
            Outcome,
        )

    async def _send_entries_to(
        self,
        host: Address | None,
        method: ThriftMethod,
        make_request: MakeRequest,
        entries: Sequence[Any],
        timeout_ms: int,
    ) -> list[Outcome]:
        reply = await self._round_trip_to_host(method, make_request(self.namespace, entries), timeout_ms, host)
        count = conversion.all_done_count(reply)
        return [DONE] * count if count is not None else conversion.outcomes(_decode_reply(method, reply).outcomes)

    async def _round_trip(
        self,
        method: ThriftMethod,
        request: Request,
        timeout_ms: int | None,
        pool: ConnectionPool,
        connect_s_max: float = inf,
        *,
        retry_connect: bool = True,
        late_reply: LateReply | None = None,
    ) -> bytes:
        """Send a call over a pool and return the reply's body. Raises FoqsError.

        Args:
            connect_s_max: the longest wait for a connection.
            retry_connect: whether to retry to connect until the deadline.
            late_reply: see `HostConnection.call`.
        """
        loop = asyncio.get_running_loop()
        if timeout_ms is None:
            timeout_ms = self.timeout_ms
        if timeout_ms < 1:
            raise errors.InvalidArgument(f"{timeout_ms} ms is too short; give at least 1 ms", field="timeout_ms")
        deadline = loop.time() + timeout_ms / 1_000
        request.timeout_ms = timeout_ms
        try:
            body = method.encode(request)
            while True:
                connection = pool.ready_connection
                if connection is None:
                    connection = await pool.wait_for_connection(
                        min(deadline, loop.time() + connect_s_max), retry_connect=retry_connect
                    )
                    request.timeout_ms = max(1, int((deadline - loop.time()) * 1_000))
                    body = method.encode(request)
                if method.newer_parts is not None and (connection.contract_version or 0) < CONTRACT_VERSION:
                    await check_served(connection, method, request, deadline)
                    if not connection.is_ready:
                        continue
                try:
                    return await connection.call(method, body, deadline + REPLY_GRACE_S, late_reply)
                except NotSent:
                    continue
        except Unencodable as error:
            raise errors.InvalidArgument(f"this call cannot be sent: {error}; correct the argument") from None
        except (NotSent, TlsRequired, OSError) as error:
            raise errors.Unreachable(str(error)) from None
        except (NoReply, Unreadable) as error:
            raise _unanswered_error(method, error) from None
        except Refused as error:
            raise _refusal_error(error) from None


async def _result_or_error(call: Awaitable[list[_R]]) -> list[_R] | errors.FoqsError:
    """Return the results of an attempt, or its error."""
    try:
        return await call
    except errors.FoqsError as error:
        return error


def _size_of_items(items: Sequence[Item]) -> CallSize | None:
    """Return the size of an enqueue; None if it is large, or if keys or groups of the caller may need several shards."""
    count = len(items)
    if count > ENTRIES_PER_CALLER_MAX:
        return None
    payload_bytes = 0
    for item in items:
        if item.idempotency_key is not None or item.group is not None:
            return None
        payload_bytes += len(item.payload) + len(item.metadata) + len(item.trace_context or b"")
    return (count, payload_bytes, ()) if payload_bytes <= BYTES_PER_CALLER_MAX else None


def _size_of_entries(entries: Sequence[Any]) -> CallSize | None:
    """Return the size of a call by id; None if it is large, or cannot be encoded."""
    if len(entries) > ENTRIES_PER_CALLER_MAX:
        return None
    ids = []
    payload_bytes = 0
    for entry in entries:
        id = entry if type(entry) is str else getattr(entry, "id", None)
        if type(id) is not str:
            return None
        ids.append(id)
        if type(entry) is Nack:
            payload_bytes += len(entry.metadata or b"")
    return (len(ids), payload_bytes, ids) if payload_bytes <= BYTES_PER_CALLER_MAX else None


def _decode_reply(method: ThriftMethod, reply: bytes) -> Any:
    """Return the struct of a reply. Raises FoqsError."""
    try:
        result = method.decode(reply)
    except Unreadable as error:
        raise _unanswered_error(method, error) from None
    if result.failed is not None:
        raise conversion.error(result.failed.error)
    if result.success is None:
        raise errors.UnknownOutcome(
            "the host's reply is empty; the call may have taken effect, so check before you repeat it"
        )
    return result.success


def _unanswered_error(method: ThriftMethod, error: Exception) -> errors.FoqsError:
    if method.is_write:
        return errors.UnknownOutcome(f"{error}; the call may have taken effect, so check before you repeat it")
    return errors.Unreachable(f"{error}; nothing was changed, so the call can be repeated")


def _refusal_error(error: Refused) -> errors.FoqsError:
    if error.reason == TApplicationException.UNKNOWN_METHOD:
        return errors.NotImplementedYet(f"the host does not know this call: {error}; upgrade the host")
    if error.reason in (TApplicationException.INTERNAL_ERROR, TApplicationException.MISSING_RESULT):
        return errors.UnknownOutcome(
            f"the host failed: {error}; the call may have taken effect, so check before you repeat it"
        )
    return errors.InvalidArgument(f"the host could not read the call: {error}")
