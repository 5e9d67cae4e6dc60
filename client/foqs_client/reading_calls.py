"""The client's calls that read: topics, items, and the routing.

Holds `ReadingCalls`, which `Client` inherits. Always true: they change nothing, so a call
that got no reply is `Unreachable` and never `UnknownOutcome`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from foqs_client import conversion, listed_groups
from foqs_client.listed_groups import ListedGroups
from foqs_client.routed_calls import GET_ROUTING, RoutedCalls
from foqs_client.types import Explanation, ItemFilter, ItemPage, ItemView, Routing, TopicPage
from foqs_contract.idl import ttypes
from foqs_contract.thrift_method import ThriftMethod

_TOPICS: Final = ThriftMethod("getActiveTopics")
_GROUPS: Final = ThriftMethod("listGroups")
_ITEM: Final = ThriftMethod("getItem")
_EXPLAIN: Final = ThriftMethod("explain")
_PEEK: Final = ThriftMethod("peek")
_LIST_ITEMS: Final = ThriftMethod("listItems")
_DEAD: Final = ThriftMethod("listDead")


class ReadingCalls(RoutedCalls):
    """The calls that only read. See `Client` for their common arguments."""

    async def topics(
        self,
        prefix: str = "",
        states: Sequence[str] | None = None,
        limit: int = 100,
        cursor: str | None = None,
        *,
        timeout_ms: int | None = None,
    ) -> TopicPage:
        """List topics by name.

        Args:
            prefix: only topics whose names begin with it.
            states: only topics with items in one of these states; None: ready or leased.
            limit: the maximum number of topics of the page.
            cursor: the `next_cursor` of the page before; None for the first page.
        """
        numbers = None if states is None else [conversion.state_number(state) for state in states]
        request = ttypes.GetActiveTopicsRequest(
            self.namespace, ttypes.TopicFilter(prefix or None, numbers), ttypes.Page(limit, cursor)
        )
        reply = await self._call(_TOPICS, request, timeout_ms)
        topics = [conversion.topic(topic) for topic in reply.topics or ()]
        return TopicPage(topics, reply.next_cursor, reply.unavailable_shards or 0)

    async def groups(
        self,
        topic: str,
        order: str = "size",
        limit: int = 100,
        *,
        states: Sequence[str] | None = None,
        group: str | None = None,
        timeout_ms: int | None = None,
    ) -> ListedGroups:
        """List groups of a topic that has a policy for groups, and what holds each back.

        Args:
            order: "size": those with more ready items than hosts have in memory come first, and of these the oldest; then
                those with the most. "age": those whose first ready item has waited longest.
            limit: the maximum number of groups, up to 1,000.
            states: only groups in one of these states; see `ListedGroup`. None: in any.
            group: only this group; the result is empty if it is not in memory.

        Raises:
            InvalidArgument: names the argument that is wrong.
            NotImplementedYet: a host has an older version, which lists no groups.
            Unavailable: a shard is not served now.
        """
        request = listed_groups.list_request(self.namespace, topic, order, states, group, limit)
        return listed_groups.group_list(await self._call(_GROUPS, request, timeout_ms))

    async def item(self, id: str, *, with_payload: bool = False, timeout_ms: int | None = None) -> ItemView:
        """Return one item without delivering it.

        Raises:
            NotFound: the namespace has no such item.
        """
        request = ttypes.GetItemRequest(self.namespace, id, with_payload)
        return conversion.item_view(await self._call_owner(_ITEM, request, id, timeout_ms))

    async def explain(self, id: str, *, with_payload: bool = False, timeout_ms: int | None = None) -> Explanation:
        """Return why an item is not delivered, and how to change that; also for an item that is gone."""
        request = ttypes.GetItemRequest(self.namespace, id, with_payload)
        return conversion.explanation(await self._call_owner(_EXPLAIN, request, id, timeout_ms))

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
        """List a topic's items in one state, best first, without delivering them."""
        request = ttypes.PeekRequest(
            self.namespace, topic, conversion.state_number(state), ttypes.Page(limit, cursor), with_payload
        )
        reply = await self._call(_PEEK, request, timeout_ms)
        return ItemPage([conversion.item_view(view) for view in reply.items or ()], reply.next_cursor)

    async def list_items(
        self,
        shard: int,
        only: ItemFilter | None = None,
        limit: int = 500,
        cursor: str | None = None,
        *,
        with_payload: bool = False,
        with_key: bool = False,
        timeout_ms: int | None = None,
    ) -> ItemPage:
        """List the items of one shard that match, by id, each as it is when its page is read.

        An item that exists during all pages is listed once. A short page need not be the last one.

        Args:
            shard: the number of the shard; `routing` lists the shards.
            only: the filter of the items to list; None: all items.
            with_key: with the idempotency keys that are still remembered.
        """
        request = ttypes.ListItemsRequest(
            self.namespace,
            None if only is None else conversion.item_filter(only),
            shard,
            ttypes.Page(limit, cursor),
            with_payload,
            with_key,
        )
        reply = await self._call_owner(_LIST_ITEMS, request, f"{shard}-0", timeout_ms)
        return ItemPage([conversion.item_view(view) for view in reply.items or ()], reply.next_cursor, reply.now_ms)

    async def dead(
        self,
        topic: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
        *,
        with_payload: bool = False,
        timeout_ms: int | None = None,
    ) -> ItemPage:
        """List dead items, of one topic or of all. A short page need not be the last one."""
        request = ttypes.ListDeadRequest(self.namespace, topic, ttypes.Page(limit, cursor), with_payload)
        reply = await self._call(_DEAD, request, timeout_ms)
        return ItemPage([conversion.item_view(view) for view in reply.items or ()], reply.next_cursor)

    async def routing(self, *, timeout_ms: int | None = None) -> Routing:
        """Return the hosts and shards of the tier."""
        return conversion.routing(await self._call(GET_ROUTING, ttypes.GetRoutingRequest(), timeout_ms))
