"""The argument of a handler, and the exceptions that it can raise.

Holds `Job`, `Retry`, `Dead`, `Discard` and `NotBegun`. Always true: if a handler returns, its
item is done, with the items that follow from it; if it raises, it is not, and they are
dropped. A value that no call can send is refused in the
handler that gives it. Knows nothing of how handlers are run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import index
from typing import Final

from foqs_client import conversion
from foqs_client.conversion import require_bytes
from foqs_client.errors import InvalidArgument
from foqs_client.safe_text import safe_text
from foqs_client.types import Delivery, Item

MS_MAX: Final = 2**63 - 1
"""The largest number that a call can carry. Hosts have lower limits."""


class Retry(Exception):
    """A handler raises it to have its item delivered again.

    Args:
        delay_ms: the time until then; 0 means now. None: the namespace's backoff.
        metadata: replaces the item's metadata; None keeps it.

    Raises:
        InvalidArgument: a value has another type or is too small; `field` names it.
    """

    def __init__(self, delay_ms: int | None = None, metadata: bytes | None = None) -> None:
        super().__init__(delay_ms, metadata)
        self.delay_ms = None if delay_ms is None else _whole_ms(delay_ms, 0, "delay_ms")
        self.metadata = None if metadata is None else require_bytes(metadata, "metadata")


class Dead(Exception):
    """A handler raises it to give its item up. The item is kept as dead, and can be read and redriven.

    Args:
        reason: one sentence. It replaces the item's metadata. Another value, such as an exception, gives its text.
    """

    def __init__(self, reason: object = "") -> None:
        super().__init__(reason)
        self.reason = "" if reason is None else safe_text(reason)


class Discard(Exception):
    """A handler raises it to delete its item without having done it."""


class NotBegun(Exception):
    """A handler raises it before it has begun its work, as when its database does not answer.

    The item is released: it can be delivered again at once, and no attempt counts. The consumer dequeues nothing more for a
    while, 0.1 s at first and at most 5 s. The text is the reason in the log.
    """


class RemoteError(Exception):
    """The text of an exception that a handler raised in a worker process."""


class Job:
    """The item that a handler works on.

    Attributes:
        lost: the lease has ended and could not be renewed. The item is delivered to another
            consumer, and the result of this handler does not count.
        then: the items that `done` gave.
    """

    __slots__ = ("_delivery", "_extend", "lost", "then")

    def __init__(self, delivery: Delivery, extend: Callable[[Job, int], object]) -> None:
        self._delivery = delivery
        self._extend = extend
        self.lost = False
        self.then: Sequence[Item] = ()

    @property
    def id(self) -> str:
        """The item's id."""
        return self._delivery.id

    @property
    def token(self) -> int:
        """The number of this lease of the item."""
        return self._delivery.token

    @property
    def incarnation(self) -> int:
        """The number of the namespace's incarnation; 0 if the host is too old."""
        return self._delivery.incarnation

    @property
    def topic(self) -> str:
        """The item's topic."""
        return self._delivery.topic

    @property
    def payload(self) -> bytes:
        """The item's payload."""
        return self._delivery.payload

    @property
    def metadata(self) -> bytes:
        """The item's metadata."""
        return self._delivery.metadata

    @property
    def priority(self) -> int:
        """The item's priority. The lowest is delivered first."""
        return self._delivery.priority

    @property
    def attempt(self) -> int:
        """The number of this delivery; 1 for the first."""
        return self._delivery.attempt

    @property
    def attempts_max(self) -> int:
        """The number of deliveries after which the item is dead; 0 means no limit."""
        return self._delivery.attempts_max

    @property
    def age_ms(self) -> int:
        """The time from the enqueue to the delivery."""
        return self._delivery.age_ms

    @property
    def first_delivery_age_ms(self) -> int | None:
        """The time from the first delivery of the item to this one; 0 for the first. None if the host is too old."""
        return self._delivery.first_delivery_age_ms

    @property
    def lease_remaining_ms(self) -> int:
        """The time from the delivery to the end of the first lease."""
        return self._delivery.lease_remaining_ms

    @property
    def trace_context(self) -> bytes | None:
        """The trace context with which the item was enqueued."""
        return self._delivery.trace_context

    @property
    def group(self) -> str | None:
        """The group of the item, if it has one."""
        return self._delivery.group

    def extend(self, lease_ms: int) -> None:
        """Renew the lease now, and use this duration for all its renewals. Returns without waiting.

        The consumer renews leases by itself. Call `extend` only before work that blocks the
        whole process for longer than half a lease. Any thread may call it.

        Raises:
            InvalidArgument: it is not a whole number from 1.
        """
        self._extend(self, _whole_ms(lease_ms, 1, "lease_ms"))

    def done(self, then: Sequence[Item] = ()) -> None:
        """Give the items that follow from this one. When the handler returns, they are added and this item is acked, or neither.

        They are written in one transaction, in the shard of this item, however often that is tried. If the handler raises,
        they are dropped. The items of the last call count. A group or an idempotency key that belongs to another shard is
        refused, and the item is tried again as if the handler had failed. Items with neither, and items of this item's own
        group, belong to it: `Item("mail", group=job.group)`. Enqueue others before the handler returns.

        Raises:
            InvalidArgument: one of them is no item, or its payload, metadata or trace context is not bytes.
        """
        items = list(then)
        for place, item in enumerate(items):
            if not isinstance(item, Item):
                raise InvalidArgument(f"{item!r} is no Item; make one of foqs_client.Item", field=f"then[{place}]")
        self.then = conversion.items(items)

    def __repr__(self) -> str:
        return f"Job(id={self.id!r}, topic={self.topic!r}, attempt={self.attempt})"


def _whole_ms(value: int, value_min: int, field: str) -> int:
    """Return a time as an integer. Raises InvalidArgument."""
    try:
        ms = index(value)
    except TypeError:
        raise InvalidArgument(f"{value!r} is not a whole number of milliseconds; use int()", field=field) from None
    if not value_min <= ms <= MS_MAX:
        raise InvalidArgument(f"{ms} is not a number from {value_min} to {MS_MAX}", field=field)
    return ms
