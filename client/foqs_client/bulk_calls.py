"""The client's calls about all items that match a filter: count, cancel, change, redrive and move them.

Holds `BulkCalls`, which `Client` inherits. Always true: it is safe to repeat a page;
the repeat finds what is left of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from foqs_client import conversion
from foqs_client.routed_calls import RoutedCalls
from foqs_client.types import BulkPage, Change, ItemCount, ItemFilter
from foqs_contract.bulk_actions import CANCEL, MOVE, REDRIVE, UPDATE
from foqs_contract.idl import ttypes
from foqs_contract.thrift_method import ThriftMethod

_COUNT: Final = ThriftMethod("countItems")
_BULK: Final = ThriftMethod("bulk")


class BulkCalls(RoutedCalls):
    """The calls about all items that match a filter. See `Client` for their common arguments."""

    async def count(self, only: ItemFilter, *, timeout_ms: int | None = None) -> ItemCount:
        """Count the items that match."""
        request = ttypes.CountItemsRequest(self.namespace, conversion.item_filter(only))
        reply = await self._call(_COUNT, request, timeout_ms)
        return ItemCount(reply.items or 0, reply.payload_bytes)

    async def cancel_matching(
        self, only: ItemFilter, limit: int = 1_000, cursor: str | None = None, *, timeout_ms: int | None = None
    ) -> BulkPage:
        """Delete a page of the items that match. It is safe to repeat a page.

        Args:
            only: the filter of the items to delete.
            limit: the maximum number of items of the page.
            cursor: the `next_cursor` of the page before; None for the first page.
        """
        return await self._bulk(CANCEL.fields(), only, limit, cursor, timeout_ms)

    async def update_matching(
        self,
        only: ItemFilter,
        change: Change,
        limit: int = 1_000,
        cursor: str | None = None,
        *,
        timeout_ms: int | None = None,
    ) -> BulkPage:
        """Change a page of the items that match. A delay counts from the first page. It is safe to repeat a page."""
        return await self._bulk(UPDATE.fields(conversion.change(change)), only, limit, cursor, timeout_ms)

    async def redrive_matching(
        self, only: ItemFilter, limit: int = 1_000, cursor: str | None = None, *, timeout_ms: int | None = None
    ) -> BulkPage:
        """Make a page of the dead items that match ready again. It is safe to repeat a page."""
        return await self._bulk(REDRIVE.fields(), only, limit, cursor, timeout_ms)

    async def move_matching(
        self,
        only: ItemFilter,
        topic: str,
        limit: int = 1_000,
        cursor: str | None = None,
        *,
        timeout_ms: int | None = None,
    ) -> BulkPage:
        """Move a page of the items of one topic that match to another topic, as `move` does. It is safe to repeat a page."""
        return await self._bulk(MOVE.fields(move_to=topic), only, limit, cursor, timeout_ms)

    async def _bulk(
        self,
        action: Mapping[str, Any],
        only: ItemFilter,
        limit: int,
        cursor: str | None,
        timeout_ms: int | None,
    ) -> BulkPage:
        request = ttypes.BulkRequest(
            self.namespace, conversion.item_filter(only), page=ttypes.Page(limit, cursor), **action
        )
        return conversion.bulk_page(await self._call(_BULK, request, timeout_ms))
