"""A bulk change: an action, with its values, on all items that match a filter.

Always true: each action that changes items has an event of an item's life. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from foqs.core.items.item import State
from foqs.core.items.life import Event, EventKind
from foqs.core.items.row_filter import ALL_STATES, RowFilter
from foqs_contract.bulk_actions import CHANGES, BulkActionRow
from foqs_contract.errors import InvalidArgument

_EVENT_KINDS: Final = {name: EventKind(name) for name in CHANGES}


@dataclass(slots=True, frozen=True)
class BulkChange:
    """An action with its values. Those that it does not take are None.

    Attributes:
        priority, delay_ms, deliver_after_ms, metadata: UPDATE; None means unchanged. A delay counts from the start of
            the walk.
        move_to: MOVE; the topic of the new items.
    """

    action: BulkActionRow
    priority: int | None = None
    delay_ms: int | None = None
    deliver_after_ms: int | None = None
    metadata: bytes | None = None
    move_to: str | None = None

    def event(self, namespace: str) -> Event:
        """Return the event of the change, without the number of an item. Only for an action that changes items."""
        return Event(
            _EVENT_KINDS[self.action.name],
            0,
            namespace,
            delay_ms=self.delay_ms,
            deliver_after_ms=self.deliver_after_ms,
            metadata=self.metadata,
            priority=self.priority,
            topic=self.move_to or "",
        )

    def narrow(self, item_filter: RowFilter) -> RowFilter:
        """Return the filter, narrowed to the items that can have the change.

        Raises:
            InvalidArgument: the filter asks for other items, or a move lacks its source or its target.
        """
        action = self.action
        if action.in_one_topic and item_filter.topic is None:
            # Of one source, so that no page finds what an earlier one moved.
            raise InvalidArgument(f"the action {action.name} needs one source; name its topic", field="filter.topic")
        if action.in_one_topic and self.move_to in (None, item_filter.topic):
            raise InvalidArgument("the items are in this topic already; name another", field="move_to")
        if not action.of_dead_items:
            return item_filter
        if item_filter.states not in (ALL_STATES, (State.DEAD,)):
            raise InvalidArgument(
                f"the action {action.name} is for dead items only; leave the states out", field="filter.states"
            )
        return replace(item_filter, states=(State.DEAD,))
