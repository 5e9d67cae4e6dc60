"""Planted bugs of dequeues that wait; see `planted`."""

from __future__ import annotations

from foqs.queue.dequeue import Dequeue


def dequeue_gives_up_early() -> None:
    """A dequeue gives up after `delivery_wait_ms_max` even if none of its items is committed."""
    Dequeue._has_leased_items = lambda self: True  # type: ignore[method-assign]
