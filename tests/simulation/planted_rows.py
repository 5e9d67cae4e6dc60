"""Bugs to plant in the columns of a row: the time of the first delivery and the trace context."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from foqs.core.flush import planning
from foqs.core.flush.flush_plan import FlushPlan
from foqs.core.flush.writes import Writes
from foqs.core.items.item import NewItem, Row, State
from foqs.core.items.life import EventKind
from foqs.shard import flush_planner
from tests.simulation.planting import plant


def first_delivery_rewritten() -> None:
    """Each lease counts as the first one."""
    lease = Row.with_lease

    def with_lease(self: Row, due_ms: int, token: int, now_ms: int) -> Row:
        return lease(replace(self, first_delivered_at_ms=None), due_ms, token, now_ms)

    plant(Row, "with_lease", with_lease)


def first_delivery_unwritten() -> None:
    """An item that is inserted as leased has no first delivery."""

    def plan_flush(*arguments: Any) -> FlushPlan:
        plan = original(*arguments)
        for row in plan.inserted:
            if row.state is State.LEASED:
                row.first_delivered_at_ms = None
        return plan

    original = planning.plan_flush
    plant(flush_planner, "plan_flush", plan_flush)


def trace_lost_at_insert() -> None:
    """A new row has no trace context."""

    def insert(item: NewItem, number: int, accepted_ms: int, now_ms: int) -> Row:
        return replace(original(item, number, accepted_ms, now_ms), trace_context=None)

    original = plant(planning, "new_row", insert)


def trace_lost_at_nack() -> None:
    """A nack drops the trace context of its item."""

    def with_nack(self: FlushPlan) -> Writes:
        for kind, _, row in self.changed:
            if kind is EventKind.NACK:
                row.trace_context = None
        return original(self)

    original = plant(FlushPlan, "writes", with_nack)
