"""One call: to which host it goes, what is sent, and what comes back.

Holds `Calls`, which `Client` inherits. Always true: a call ends by its deadline,
and shortly after where only the reply is late; one that was sent and not
answered ends as `UnknownOutcome` when it may have written, as `Unreachable` when
it only reads. Calls by id go to the host of the item's shard, and keyed items to
that of their key's slot, as far as a map of the cluster is known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from math import inf
from random import Random
from typing import Any, Final, TypeVar

from thrift.Thrift import TApplicationException

from foqs_client import convert, errors
from foqs_client.attempts import ById
from foqs_client.gather import BYTES_EACH_MAX, ENTRIES_EACH_MAX, Attempt, Gatherer, Size
from foqs_client.idl import ttypes
from foqs_client.keyed import AutomaticKeys
from foqs_client.link import NoReply, NotSent, NotServed
from foqs_client.map_change import changed
from foqs_client.message import Method, Refused, Unencodable, Unreadable, all_done
from foqs_client.pool import Pool
from foqs_client.router import REACH_S, Router
from foqs_client.routes import Address, spread
from foqs_client.types import DONE, Enqueued, Item, Nack, Outcome, Routing

REPLY_GRACE_S: Final = 1.5
"""How long after a call's deadline its reply may still arrive: the host ends every call within a second of it."""

ROUTING: Final = Method("getRouting")
_ANY: Final[Sequence[Address | None]] = (None,)
_R = TypeVar("_R")
_NO_ROOM: Final = (errors.Overloaded, errors.Unavailable)
_ENQUEUE: Final = Method("enqueue", writes=True, into=Enqueued)


class Calls:
    """The calls of a client.

    Attributes:
        namespace: of every call.
        timeout_ms: the time of a call that names none.
    """

    namespace: str
    timeout_ms: int
    _pool: Pool
    """To the hosts that the client was given."""
    _router: Router
    _keys: AutomaticKeys | None
    _rng: Random
    _gatherer: Gatherer | None
    """None: every call is sent as it was made."""

    async def _ask_routing(self, pool: Pool, known: Routing | None, timeout_ms: int) -> Routing:
        """The map as a host knows it now; of one that is known only what changed travels."""
        request = ttypes.GetRoutingRequest(None if known is None else known.version, changes=known is not None)
        patient = pool is self._router.seeds
        reply = _success(ROUTING, await self._reply(ROUTING, request, timeout_ms, pool, REACH_S, patient=patient))
        routing = changed(known, reply)
        return convert.routing(reply) if routing is None else routing

    async def _call(self, method: Method, request: Any, timeout_ms: int | None, at: Address | None = None) -> Any:
        """The reply's struct. Raises FoqsError."""
        return _success(method, await self._ask(method, request, timeout_ms, at))

    async def _call_owner(self, method: Method, request: Any, timeout_ms: int | None) -> Any:
        """Asks the host of an item's shard, and where that fails the one that has it now, or any, which passes it on."""
        self._router.look()
        if timeout_ms is None:
            timeout_ms = self.timeout_ms
        loop = asyncio.get_running_loop()
        begun, first = loop.time(), self.owner(request.id)
        try:
            return await self._call(method, request, timeout_ms, first)
        except errors.NotOwner:
            self._router.stale()
        except errors.Unreachable:
            if first is None:
                raise
        left_ms = await self._router.looked(max(1, timeout_ms - int((loop.time() - begun) * 1_000)))
        second = self.owner(request.id)
        return await self._call(method, request, left_ms, None if second == first else second)

    async def _ask(self, method: Method, request: Any, timeout_ms: int | None, at: Address | None) -> bytes:
        """What the host answers. One of the map that cannot be reached is `Unavailable`: another may do, or a newer map."""
        if at is None:
            return await self._reply(method, request, timeout_ms, self._pool)
        try:
            reply = await self._reply(method, request, timeout_ms, self._router.pool(at), REACH_S, patient=False)
        except errors.Unreachable as error:
            self._router.unreachable(at)
            if method.writes:
                raise errors.Unavailable(f"nothing was sent: {error}") from None
            raise
        self._router.reached(at)
        return reply

    def owner(self, id: str) -> Address | None:
        """The host that an item's shard was at when the map was last read; None where none is known."""
        return None if self._router.routes is None else self._router.routes.owner(id)

    def _first_of_items(self, items: Sequence[Item], timeout_ms: int) -> Awaitable[Attempt[Item, Enqueued]]:
        """The first attempt of an enqueue, together with those of other calls; the keys of all of them share one slot."""

        async def ask(items: Sequence[Item]) -> Attempt[Item, Enqueued]:
            sent = items if self._keys is None else self._keys.give(items)
            return sent, await _told(self._send_items(sent, timeout_ms))

        size = None if self._gatherer is None else _size_of_items(items)
        if self._gatherer is None or size is None:
            return ask(items)
        return self._gatherer.call((_ENQUEUE, timeout_ms), items, size, ask)

    async def _send_items(self, items: Sequence[Item], timeout_ms: int) -> list[Enqueued]:
        """One attempt of an enqueue."""
        routes = self._router.routes
        try:
            if routes is None:
                results = await self._send_to(None, items, timeout_ms)
            else:
                results = await spread(
                    items,
                    lambda item: None if item.idempotency_key is None else routes.holder(item.idempotency_key),
                    lambda at, part: self._send_part(at, part, timeout_ms),
                    lambda error: Enqueued(error=error),
                )
        except errors.FoqsError as error:
            self._router.heard([error])
            raise
        if [result.error for result in results].count(None) < len(results):
            self._router.heard(result.error for result in results)
        return results

    async def _send_items_again(self, items: Sequence[Item], timeout_ms: int) -> list[Enqueued]:
        """A later attempt of an enqueue."""
        return await self._send_items(items, await self._router.looked(timeout_ms))

    async def _send_part(self, at: Address | None, items: Sequence[Item], timeout_ms: int) -> list[Enqueued]:
        """To the host of their slot; where there is none, to the first host that takes them."""
        failure: errors.FoqsError | None = None
        for host in self._router.takers() if at is None else (at,):
            try:
                return await self._send_to(host, items, timeout_ms)
            except (errors.Unavailable, errors.Overloaded, errors.NotOwner) as error:
                failure = failure or error
        assert failure is not None
        raise failure

    async def _send_to(self, at: Address | None, items: Sequence[Item], timeout_ms: int) -> list[Enqueued]:
        request = ttypes.EnqueueRequest(self.namespace, items)
        if at is None:
            return convert.enqueued((await self._call(_ENQUEUE, request, timeout_ms)).results)
        loads, count = self._router.loads, len(items)
        loads.begun(at, count)
        try:
            results = convert.enqueued((await self._call(_ENQUEUE, request, timeout_ms, at)).results)
        except _NO_ROOM:
            loads.refused(at, asyncio.get_running_loop().time())
            raise
        finally:
            loads.ended(at, count)
        if any(isinstance(result.error, _NO_ROOM) for result in results if result.error is not None):
            loads.refused(at, asyncio.get_running_loop().time())
        return results

    async def _by_id(
        self,
        method: Method,
        request: Any,
        entries: list[Any],
        kind: type[ById],
        timeout_ms: int | None,
        *,
        at_once: bool = False,
    ) -> list[Outcome]:
        """An outcome for each entry; none without a call when there are none.

        Args:
            at_once: sent in this turn: not gathered.
        """
        if not entries:
            return []
        self._router.look()
        if timeout_ms is None:
            timeout_ms = self.timeout_ms
        begun = asyncio.get_running_loop().time()
        size = None if self._gatherer is None or at_once else _size_of_entries(entries)
        hosts = _ANY if self._router.routes is None or size is None else list({self.owner(name) for name in size[2]})
        first: list[Outcome] | errors.FoqsError
        if self._gatherer is None or size is None or len(hosts) > 1:
            first = await _told(self._send_entries(method, request, entries, timeout_ms))
        else:
            at = hosts[0]

            async def ask(entries: Sequence[Any]) -> Attempt[Any, Outcome]:
                return entries, await _told(self._send_entries_to(at, method, request, entries, timeout_ms))

            _, first = await self._gatherer.call((method, request, at, timeout_ms), entries, size, ask)
        if isinstance(first, errors.FoqsError):
            self._router.heard([first])
        else:
            wrong = [outcome.error for outcome in first if outcome.error is not None]
            if not wrong and len(first) == len(entries):
                return first
            self._router.heard(wrong)

        async def again(entries: Sequence[Any], timeout_ms: int) -> list[Outcome]:
            left_ms = await self._router.looked(timeout_ms)
            outcomes = await self._send_entries(method, request, entries, left_ms)
            self._router.heard(outcome.error for outcome in outcomes)
            return outcomes

        return await kind(entries).go_on(first, again, begun, timeout_ms, self._pool.pause, self._rng)

    async def _send_entries(
        self, method: Method, request: Any, entries: Sequence[Any], timeout_ms: int
    ) -> list[Outcome]:
        """One attempt of a call by id."""
        routes = self._router.routes
        if routes is None:
            return await self._send_entries_to(None, method, request, entries, timeout_ms)
        return await spread(
            entries,
            lambda entry: routes.owner(entry if type(entry) is str else entry.id),
            lambda at, part: self._send_entries_to(at, method, request, part, timeout_ms),
            Outcome,
        )

    async def _send_entries_to(
        self, at: Address | None, method: Method, request: Any, entries: Sequence[Any], timeout_ms: int
    ) -> list[Outcome]:
        reply = await self._ask(method, request(self.namespace, entries), timeout_ms, at)
        count = all_done(reply)
        return [DONE] * count if count is not None else convert.outcomes(_success(method, reply).outcomes)

    async def _reply(
        self,
        method: Method,
        request: Any,
        timeout_ms: int | None,
        pool: Pool,
        reach_s: float = inf,
        *,
        patient: bool = True,
    ) -> bytes:
        """What the host answers, not yet read. Raises FoqsError.

        Args:
            reach_s: how long a connection is waited for at most.
            patient: where it cannot be had, it is tried again until then.
        """
        loop = asyncio.get_running_loop()
        if timeout_ms is None:
            timeout_ms = self.timeout_ms
        if timeout_ms < 1:
            raise errors.InvalidArgument(f"{timeout_ms} ms is no time at all; give at least 1", field="timeout_ms")
        deadline = loop.time() + timeout_ms / 1_000
        request.timeout_ms = timeout_ms
        try:
            body = method.encode(request)
            while True:
                link = pool.ready_link
                if link is None:
                    link = await pool.link(min(deadline, loop.time() + reach_s), patient=patient)
                    request.timeout_ms = max(1, int((deadline - loop.time()) * 1_000))
                    body = method.encode(request)
                seqid, reply = link.send(method, body, deadline + REPLY_GRACE_S)
                try:
                    return await reply
                except NotSent:
                    continue
                except BaseException:
                    link.forget(seqid)
                    raise
        except Unencodable as error:
            raise errors.InvalidArgument(f"this call cannot be sent: {error}") from None
        except NotSent as error:
            raise errors.Unreachable(str(error)) from None
        except NotServed as error:
            raise errors.Unreachable(str(error)) from None
        except (NoReply, Unreadable) as error:
            raise _unanswered(method, error) from None
        except Refused as error:
            raise _refusal(error) from None


async def _told(asked: Awaitable[list[_R]]) -> list[_R] | errors.FoqsError:
    """What an attempt comes to."""
    try:
        return await asked
    except errors.FoqsError as error:
        return error


def _size_of_items(items: Sequence[Item]) -> Size | None:
    """Of an enqueue; None of a large one, and where the caller's keys may send its items to several shards."""
    count = len(items)
    if count > ENTRIES_EACH_MAX:
        return None
    payload_bytes = 0
    for item in items:
        if item.idempotency_key is not None:
            return None
        payload_bytes += len(item.payload) + len(item.metadata)
    return (count, payload_bytes, ()) if payload_bytes <= BYTES_EACH_MAX else None


def _size_of_entries(entries: Sequence[Any]) -> Size | None:
    """Of a call by id; None of a large one, and of what cannot be sent."""
    if len(entries) > ENTRIES_EACH_MAX:
        return None
    names = []
    payload_bytes = 0
    for entry in entries:
        name = entry if type(entry) is str else getattr(entry, "id", None)
        if type(name) is not str:
            return None
        names.append(name)
        if type(entry) is Nack:
            payload_bytes += len(entry.metadata or b"")
    return (len(names), payload_bytes, names) if payload_bytes <= BYTES_EACH_MAX else None


def _success(method: Method, reply: bytes) -> Any:
    """The struct of a reply. Raises FoqsError."""
    try:
        result = method.decode(reply)
    except Unreadable as error:
        raise _unanswered(method, error) from None
    if result.failed is not None:
        raise convert.error(result.failed.error)
    if result.success is None:
        raise errors.UnknownOutcome("the host's reply is empty; the call may have taken effect")
    return result.success


def _unanswered(method: Method, error: Exception) -> errors.FoqsError:
    if method.writes:
        return errors.UnknownOutcome(f"{error}; the call may have taken effect")
    return errors.Unreachable(str(error))


def _refusal(error: Refused) -> errors.FoqsError:
    if error.reason == TApplicationException.UNKNOWN_METHOD:
        return errors.NotImplementedYet(f"the host does not know this call: {error}")
    if error.reason in (TApplicationException.INTERNAL_ERROR, TApplicationException.MISSING_RESULT):
        return errors.UnknownOutcome(f"the host failed: {error}; the call may have taken effect")
    return errors.InvalidArgument(f"the host could not read the call: {error}")
