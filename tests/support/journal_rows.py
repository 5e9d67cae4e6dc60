"""Rows for the tests of the journal."""

from __future__ import annotations

from dataclasses import replace

from foqs.core.items.item import DeliveryPolicy, Row, State


def new_row(number: int, **values: object) -> Row:
    """Return a READY row with a payload of nine bytes that is not in memory, and with these values."""
    policy = DeliveryPolicy.AT_LEAST_ONCE
    row = Row(number, "n", "t", 0, 7, 7, 30, None, None, policy, 0, 9, None, b"", State.READY, None, 0, 0)
    return replace(row, **values)  # type: ignore[arg-type]
