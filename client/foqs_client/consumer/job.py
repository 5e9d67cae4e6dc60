"""What a handler gets, and how it says that it could not do it.

Holds `Job` and the exceptions `Retry`, `Dead` and `Discard`. Always true: a
handler that returns has done its item; one that raises has not. Knows nothing of
how handlers are run.
"""

from __future__ import annotations

from collections.abc import Callable

from foqs_client.types import Delivery


class Retry(Exception):
    """Not done: deliver the item again.

    Args:
        delay_ms: after this time; 0 means now. None: the namespace's backoff decides.
        metadata: replaces the item's metadata.
    """

    def __init__(self, delay_ms: int | None = None, metadata: bytes | None = None) -> None:
        super().__init__(delay_ms, metadata)
        self.delay_ms = delay_ms
        self.metadata = metadata


class Dead(Exception):
    """Not done, and no more to be tried: the item is kept as dead, where it can be looked at and redriven.

    Args:
        reason: one sentence, kept as the item's metadata.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class Discard(Exception):
    """Not done, and not wanted any more: the item is deleted."""


class RemoteError(Exception):
    """What a handler raised in a process of its own: a sentence."""


class Job:
    """An item that a handler is to do.

    Attributes:
        lost: the lease is over and could not be renewed: the item is somebody else's
            now, or will be, and what this handler comes to does not count.
    """

    __slots__ = ("_delivery", "_extend", "lost")

    def __init__(self, delivery: Delivery, extend: Callable[[Job, int], object]) -> None:
        self._delivery = delivery
        self._extend = extend
        self.lost = False

    @property
    def id(self) -> str:
        return self._delivery.id

    @property
    def topic(self) -> str:
        return self._delivery.topic

    @property
    def payload(self) -> bytes:
        return self._delivery.payload

    @property
    def metadata(self) -> bytes:
        return self._delivery.metadata

    @property
    def priority(self) -> int:
        return self._delivery.priority

    @property
    def attempt(self) -> int:
        """1 with the first delivery."""
        return self._delivery.attempt

    @property
    def attempts_max(self) -> int:
        """0 means without limit."""
        return self._delivery.attempts_max

    @property
    def age_ms(self) -> int:
        """From the enqueue to the delivery."""
        return self._delivery.age_ms

    def extend(self, lease_ms: int) -> None:
        """From now on the lease is so long each time it is renewed, first at once; returns without waiting.

        Leases are renewed without it. It is for what keeps the whole process from
        running for longer than half a lease.
        """
        self._extend(self, lease_ms)

    def __repr__(self) -> str:
        return f"Job(id={self.id!r}, topic={self.topic!r}, attempt={self.attempt})"
