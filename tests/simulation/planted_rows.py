"""Bugs to plant in the columns of a row: the time of the first delivery and the trace context."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from foqs.core.flush import flush_plan
from foqs.core.items import life
from foqs.core.items.item import NewItem, Row
from foqs.core.items.life import Transition
from tests.simulation.planting import plant


def first_delivery_rewritten() -> None:
    """Each lease counts as the first one."""
    lease = Row.with_lease

    def with_lease(self: Row, due_ms: int, token: int, now_ms: int) -> Row:
        return lease(replace(self, first_delivered_at_ms=None), due_ms, token, now_ms)

    plant(Row, "with_lease", with_lease)


def first_delivery_unwritten() -> None:
    """An item that is inserted as leased has no first delivery."""

    def decide_and_forget(*arguments: Any) -> None:
        original(*arguments)
        for row in arguments[-1].inserted:
            row.first_delivered_at_ms = None

    original = plant(flush_plan, "_decide_direct_deliveries", decide_and_forget)


def trace_lost_at_insert() -> None:
    """A new row has no trace context."""

    def insert(item: NewItem, number: int, now_ms: int) -> Row:
        return replace(original(item, number, now_ms), trace_context=None)

    original = plant(flush_plan, "new_row", insert)


def trace_lost_at_nack() -> None:
    """A change of a row drops its trace context."""

    def lose(*arguments: Any, **more: Any) -> Transition:
        transition = original(*arguments, **more)
        assert transition.row is not None
        return replace(transition, row=replace(transition.row, trace_context=None))

    original = plant(life, "_to_changed", lose)
