"""Planted bugs of dequeues that wait; see `planted`."""

from __future__ import annotations

from foqs.queue.dequeue import Dequeue
from tests.simulation.planting import plant


def dequeue_gives_up_early() -> None:
    """A dequeue gives up after `delivery_wait_ms_max` even if none of its items is committed."""
    plant(Dequeue, "_has_leased_items", lambda self: True)
