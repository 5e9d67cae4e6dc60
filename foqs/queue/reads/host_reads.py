"""The calls that only read, over the shards of one host: each chooses its shards and is answered in a module of its own.

Changes nothing. Knows no Thrift and no SQL.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from foqs.core.items.item import State
from foqs.core.items.row_filter import RowFilter
from foqs.core.memory.demand import Demand
from foqs.queue.call_limits import CallLimits
from foqs.queue.host_state import HostState
from foqs.queue.owned_shards import OwnedShards
from foqs.queue.port import (
    GroupList,
    ItemDetails,
    ItemExplanation,
    ItemTotals,
    PageResult,
    RowView,
    ShardListing,
    ShardPage,
    TopicStats,
    WantedGroups,
)
from foqs.queue.quota import Quota
from foqs.queue.reads.counting import count_matching, count_page
from foqs.queue.reads.explainer import Explainer
from foqs.queue.reads.group_lists import list_groups
from foqs.queue.reads.item_details import read_item
from foqs.queue.reads.listings import ListedShards, list_topics
from foqs.queue.reads.matching import list_matching
from foqs.queue.reads.peek import peek_topic
from foqs.queue.reads.shard_pages import list_shard
from foqs_contract.errors import Unavailable


class HostReads:
    """Implements `port.QueueReads`.

    Args:
        is_stopping: returns whether this host is stopping.
    """

    def __init__(
        self,
        state: HostState,
        shards: OwnedShards,
        demand: Demand,
        quota: Quota,
        limits: CallLimits,
        is_stopping: Callable[[], bool],
    ) -> None:
        self._shards = shards
        self._namespaces = state.namespaces
        self._availability = state.availability
        self._page_bytes_max = limits.delivery_bytes_max
        self._explainer = Explainer(state, shards, demand, quota, limits.better_items_max, is_stopping)

    async def list_topics(
        self, namespace: str, prefix: str, states: Sequence[State] | None, cursor: str | None, limit: int
    ) -> tuple[list[TopicStats], str | None]:
        return await list_topics(self._listed_shards, self._namespaces, namespace, prefix, states, cursor, limit)

    def unavailable_shards(self) -> int:
        return self._availability.unavailable_shards() + self._availability.unserved_shards()

    def is_partial(self) -> bool:
        return len(self._shards.serving()) < len(self._shards.statuses)

    def _listed_shards(self) -> ListedShards:
        """Return the shards whose topics are listed. Raises `Unavailable`."""
        shards = self._shards.serving()
        if not shards:
            raise Unavailable("no shard of this host is served now; try again", retry_after_ms=500)
        is_lagging = any(shard.counts.is_lagging for shard in shards)
        return ListedShards(shards, is_partial=len(shards) < len(self._shards.statuses), is_lagging=is_lagging)

    async def list_groups(self, wanted: WantedGroups, shards: Collection[int] | None = None) -> GroupList:
        return await list_groups(self._shards.get_all(shards), self._shards.served, self._namespaces, wanted)

    async def peek(
        self,
        namespace: str,
        topic: str,
        state: State,
        cursor: str | None,
        limit: int,
        with_payload: bool,
        deadline: float,
        shards: Collection[int] | None = None,
    ) -> tuple[list[RowView], str | None]:
        bytes_max = self._page_bytes_max if with_payload else None
        owned = self._shards.get_all(shards)
        return await peek_topic(owned, (namespace, topic), state, cursor, limit, bytes_max, deadline)

    async def list_matching(
        self,
        namespace: str,
        item_filter: RowFilter,
        cursor: str | None,
        limit: int,
        with_payload: bool,
        deadline: float,
        shards: Collection[int] | None = None,
    ) -> tuple[list[RowView], str | None]:
        bytes_max = self._page_bytes_max if with_payload else None
        owned = self._shards.get_all(shards)
        return await list_matching(owned, namespace, item_filter, cursor, limit, bytes_max, deadline)

    async def list_shard(self, listing: ShardListing, deadline: float) -> ShardPage:
        return await list_shard(self._shards.get(listing.shard), listing, self._page_bytes_max, deadline)

    async def count_matching(
        self, namespace: str, item_filter: RowFilter, deadline: float, shards: Collection[int] | None = None
    ) -> ItemTotals:
        return await count_matching(self._shards.get_all(shards), namespace, item_filter, deadline)

    async def count_page(
        self,
        namespace: str,
        item_filter: RowFilter,
        cursor: str | None,
        limit: int,
        deadline: float,
        shards: Collection[int] | None = None,
    ) -> PageResult:
        return await count_page(self._shards.get_all(shards), namespace, item_filter, cursor, limit, deadline)

    async def get_item(self, namespace: str, shard: int, number: int, deadline: float) -> ItemDetails:
        return await read_item(self._shards.get(shard), namespace, number, deadline)

    async def explain(self, namespace: str, shard: int, number: int, deadline: float) -> ItemExplanation:
        return await self._explainer.explain(namespace, shard, number, deadline)
