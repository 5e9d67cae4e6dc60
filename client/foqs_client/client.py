"""The asynchronous client.

Holds one transport and a namespace. Always true: a call ends by its deadline,
and shortly after where only the reply is late; nothing is sent twice; a call
that was sent and not answered ends as `UnknownOutcome` when it may have
written, as `Unreachable` when it only reads. Cancelling a call is safe: its
reply is dropped, and items it would have delivered come back when their leases
end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

from thrift.Thrift import TApplicationException

from foqs_client import convert, errors
from foqs_client.address import parse_addresses
from foqs_client.idl import Foqs, ttypes
from foqs_client.transport import Connect, NoReply, NotSent, Refused, Transport, Unencodable
from foqs_client.types import (
    Delivery,
    Enqueued,
    Item,
    ItemPage,
    ItemView,
    Nack,
    Outcome,
    Routing,
    TopicPage,
)

TIMEOUT_MS_DEFAULT: Final = 10_000
REPLY_GRACE_S: Final = 1.5
"""How long after a call's deadline its reply may still arrive: the host ends every call within a second of it."""

Lease: TypeAlias = Delivery | tuple[str, int]
"""A delivery, or its (id, token)."""


class Client:
    """A connection to a queue.

    Opened when the first call needs it, and again after a loss. Use it as
    `async with Client("foqs://127.0.0.1:7411") as client:`.

    Args:
        url: `foqs://host:port,host:port`; the port may be left out (7411).
        namespace: the namespace of every call.
        timeout_ms: the time of a call that names none.
        connect: opens connections in place of the loop's `create_connection`.

    Raises:
        InvalidArgument: the URL is not of this form.
    """

    def __init__(
        self,
        url: str,
        *,
        namespace: str = "default",
        timeout_ms: int = TIMEOUT_MS_DEFAULT,
        connect: Connect | None = None,
    ) -> None:
        self.namespace = namespace
        self.timeout_ms = timeout_ms
        self._transport = Transport(parse_addresses(url), connect)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connection. Calls under way end as after its loss."""
        await self._transport.close()

    # ---------------------------------------------------------- the way of items

    async def enqueue(self, items: Sequence[Item], *, timeout_ms: int | None = None) -> list[Enqueued]:
        """Adds items; a result for each, in order. An id means that the item is durable."""
        request = ttypes.EnqueueRequest(self.namespace, [convert.new_item(item) for item in items])
        reply = await self._call("enqueue", request, timeout_ms)
        return [convert.enqueued(result) for result in reply.results or ()]

    async def dequeue(
        self,
        wants: Mapping[str, int],
        *,
        wait_ms: int = 0,
        lease_ms: int | None = None,
        timeout_ms: int | None = None,
    ) -> list[Delivery]:
        """Leases the best items of topics: at most `wants[topic]` of each.

        Args:
            wait_ms: how long to wait for an item when there is none.
            lease_ms: overrides the items' own lease durations.
            timeout_ms: where not given, the client's own on top of `wait_ms`.
        """
        topics = [ttypes.TopicCount(topic, count) for topic, count in wants.items()]
        request = ttypes.DequeueRequest(self.namespace, topics, wait_ms=wait_ms, lease_ms=lease_ms)
        if timeout_ms is None:
            timeout_ms = self.timeout_ms + max(0, wait_ms)
        reply = await self._call("dequeue", request, timeout_ms)
        return [convert.delivery(item) for item in reply.items or ()]

    async def ack(self, leases: Sequence[Lease], *, timeout_ms: int | None = None) -> list[Outcome]:
        """Done: deletes the items."""
        request = ttypes.AckRequest(self.namespace, [convert.lease(lease) for lease in leases])
        return await self._outcomes("ack", request, timeout_ms)

    async def nack(self, nacks: Sequence[Nack | Lease], *, timeout_ms: int | None = None) -> list[Outcome]:
        """Not done: to be delivered again, or never (`dead`). A bare lease backs off by the namespace's policy."""
        request = ttypes.NackRequest(self.namespace, [convert.nack(nack) for nack in nacks])
        return await self._outcomes("nack", request, timeout_ms)

    async def extend(
        self, leases: Sequence[Lease], *, lease_ms: int | None = None, timeout_ms: int | None = None
    ) -> list[Outcome]:
        """The leases end `lease_ms` from now; None: after the items' own lease durations."""
        extensions = []
        for lease in leases:
            named = convert.lease(lease)
            extensions.append(ttypes.Extension(named.id, named.token, lease_ms))
        return await self._outcomes("extendLease", ttypes.ExtendLeaseRequest(self.namespace, extensions), timeout_ms)

    async def release(self, leases: Sequence[Lease], *, timeout_ms: int | None = None) -> list[Outcome]:
        """Not tried: gives items back without counting the attempt."""
        request = ttypes.ReleaseRequest(self.namespace, [convert.lease(lease) for lease in leases])
        return await self._outcomes("release", request, timeout_ms)

    async def cancel(self, ids: Sequence[str], *, timeout_ms: int | None = None) -> list[Outcome]:
        """Deletes items in any state."""
        return await self._outcomes("cancel", ttypes.CancelRequest(self.namespace, list(ids)), timeout_ms)

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
        numbers = None if states is None else [convert.state_number(state) for state in states]
        request = ttypes.GetActiveTopicsRequest(
            self.namespace, ttypes.TopicFilter(prefix or None, numbers), ttypes.Page(limit, cursor)
        )
        reply = await self._call("getActiveTopics", request, timeout_ms)
        return TopicPage([convert.topic(topic) for topic in reply.topics or ()], reply.next_cursor)

    async def item(self, id: str, *, with_payload: bool = False, timeout_ms: int | None = None) -> ItemView:
        """Looks at one item. Raises NotFound."""
        request = ttypes.GetItemRequest(self.namespace, id, with_payload)
        return convert.item_view(await self._call("getItem", request, timeout_ms))

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
            self.namespace, topic, convert.state_number(state), ttypes.Page(limit, cursor), with_payload
        )
        reply = await self._call("peek", request, timeout_ms)
        return ItemPage([convert.item_view(view) for view in reply.items or ()], reply.next_cursor)

    async def routing(self, *, timeout_ms: int | None = None) -> Routing:
        """Hosts and shards."""
        return convert.routing(await self._call("getRouting", ttypes.GetRoutingRequest(), timeout_ms))

    # ------------------------------------------------------------------- one call

    async def _outcomes(self, name: str, request: Any, timeout_ms: int | None) -> list[Outcome]:
        reply = await self._call(name, request, timeout_ms)
        return [convert.outcome(result) for result in reply.outcomes or ()]

    async def _call(self, name: str, request: Any, timeout_ms: int | None) -> Any:
        """The reply's struct. Raises FoqsError."""
        loop = asyncio.get_running_loop()
        if timeout_ms is None:
            timeout_ms = self.timeout_ms
        if timeout_ms < 1:
            raise errors.InvalidArgument(f"{timeout_ms} ms is no time at all; give at least 1", field="timeout_ms")
        deadline = loop.time() + timeout_ms / 1_000
        request.timeout_ms = timeout_ms
        arguments = getattr(Foqs, f"{name}_args")(request)
        try:
            result = await self._transport.call(
                name, arguments, getattr(Foqs, f"{name}_result"), deadline, deadline + REPLY_GRACE_S
            )
        except Unencodable as error:
            raise errors.InvalidArgument(f"this call cannot be sent: {error}") from None
        except NotSent as error:
            raise errors.Unreachable(str(error)) from None
        except NoReply as error:
            if name in _WRITES:
                raise errors.UnknownOutcome(f"{error}; the call may have taken effect") from None
            raise errors.Unreachable(str(error)) from None
        except Refused as error:
            raise _refusal(error) from None
        if result.failed is not None:
            raise convert.error(result.failed.error)
        if result.success is None:
            raise errors.UnknownOutcome("the host's reply is empty; the call may have taken effect")
        return result.success


_WRITES: Final = frozenset(("enqueue", "dequeue", "ack", "nack", "extendLease", "release", "cancel"))


def _refusal(error: Refused) -> errors.FoqsError:
    if error.reason == TApplicationException.UNKNOWN_METHOD:
        return errors.NotImplementedYet(f"the host does not know this call: {error}")
    if error.reason in (TApplicationException.INTERNAL_ERROR, TApplicationException.MISSING_RESULT):
        return errors.UnknownOutcome(f"the host failed: {error}; the call may have taken effect")
    return errors.InvalidArgument(f"the host could not read the call: {error}")
