"""Converts bulk changes to the fields of Thrift structs, and back.

Always true: a change survives the way there and back. Knows nothing of calls, and of single
actions only what `foqs_contract.bulk_actions` says.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from foqs.core.items.row_filter import RowFilter
from foqs.options.options import NamespaceOptions
from foqs.queue.bulk_change import BulkChange
from foqs.rpc import request_structs
from foqs.rpc.filters import parse_change, parse_filter
from foqs_contract.bulk_actions import BulkActionRow, check_action
from foqs_contract.idl import ttypes

_Changing: TypeAlias = ttypes.BulkRequest | ttypes.StartBulkJobRequest | ttypes.BulkChange


def parse_bulk(
    raw_filter: ttypes.ItemFilter | None, changing: _Changing, settings: NamespaceOptions
) -> tuple[BulkChange, RowFilter]:
    """Return the change of a bulk request, and the filter of its items. Raises FoqsError."""
    item_filter = parse_filter(raw_filter)
    change = _parse_values(check_action(changing), changing, settings)
    return change, change.narrow(item_filter)


def _parse_values(action: BulkActionRow, changing: _Changing, settings: NamespaceOptions) -> BulkChange:
    if action.takes == "change":
        event = parse_change(changing.change, settings)
        return BulkChange(action, event.priority, event.delay_ms, event.deliver_after_ms, event.metadata)
    if action.takes == "move_to":
        return BulkChange(action, move_to=request_structs.parse_name(changing.move_to, "move_to"))
    return BulkChange(action)


def change_fields(change: BulkChange) -> dict[str, Any]:
    """Return the fields of a struct that describe the change of each item; texts are bytes, as in a decoded request."""
    values: Any = None
    if change.action.takes == "change":
        values = ttypes.Change(
            priority=change.priority,
            delay_ms=change.delay_ms,
            deliver_after_ms=change.deliver_after_ms,
            metadata=change.metadata,
        )
    return change.action.fields(values, None if change.move_to is None else change.move_to.encode())
