"""What receives with a ReceiveRequestAttemptId got, so that a receive that is repeated gets the same messages.

A client repeats a receive whose reply it has lost. Always true: an attempt is remembered when its reply is written, so that its
messages are not given back any more; it is forgotten `KEPT_S` after that, and as soon as a message of it was settled here;
there are at most `attempts_max`, and their messages have at most `bytes_max`. Beyond that the namespace that holds most
loses its oldest attempt, so none is harmed by another one that receives more. Whether the leases still last, only the
shards know. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from foqs.queue.port import ITEM_OVERHEAD_BYTES
from foqs.runtime.peer_budget import PeerBudget

KEPT_S: Final = 300.0
ATTEMPTS_MAX: Final = 10_000
BYTES_MAX: Final = 16 * 1024 * 1024

LeaseName: TypeAlias = tuple[str, int]
"""The id of an item, and the token of its lease."""


class AttemptName(NamedTuple):
    """What two receives have in common if one repeats the other: the queue, the principal and ReceiveRequestAttemptId.

    `created_at_s`: of the queue; a queue that was created again is another one.
    """

    namespace: str
    queue: str
    created_at_s: int
    principal: str | None
    attempt_id: str


@dataclass(slots=True, frozen=True, eq=False)
class ReceiveAttempt:
    """The messages that a receive got. It is a holding of its namespace in the budgets.

    Attributes:
        leases: those of the deliveries.
        received_s: the time of the receive, in seconds since 1970-01-01 UTC. The ages of the deliveries count from it.
        ends_at_s: when it is forgotten, by the steady clock.
        on_evicted: forgets it.
    """

    peer: str
    deliveries: Sequence[Any]
    leases: Sequence[LeaseName]
    received_s: float
    ends_at_s: float
    on_evicted: Callable[[], None]


class ReceiveAttempts:
    """The attempts that one host remembers.

    Args:
        time_s: a steady clock, in seconds.
    """

    def __init__(
        self, time_s: Callable[[], float], attempts_max: int = ATTEMPTS_MAX, bytes_max: int = BYTES_MAX
    ) -> None:
        self._time_s = time_s
        self._bytes_max = bytes_max
        self._attempts: dict[AttemptName, ReceiveAttempt] = {}
        """The oldest first."""
        self._name_by_lease: dict[LeaseName, AttemptName] = {}
        self._bytes = PeerBudget(bytes_max)
        self._counts = PeerBudget(attempts_max)

    def __len__(self) -> int:
        return len(self._attempts)

    def find(self, name: AttemptName) -> ReceiveAttempt | None:
        """Return what an attempt got; None if that is not known, or was settled."""
        self._forget_ended()
        return self._attempts.get(name)

    def remember(
        self, name: AttemptName, deliveries: Sequence[Any], leases: Sequence[LeaseName], received_s: float
    ) -> None:
        """Remember what an attempt got, in place of what it got before. Without messages there is nothing to repeat."""
        self.forget(name)
        self._forget_ended()
        size = _size(deliveries)
        if not deliveries or size > self._bytes_max:
            return
        ends_at_s = self._time_s() + KEPT_S
        forget = partial(self.forget, name)
        attempt = ReceiveAttempt(name.namespace, deliveries, leases, received_s, ends_at_s, forget)
        self._attempts[name] = attempt
        self._name_by_lease.update(dict.fromkeys(leases, name))
        self._counts.hold(attempt, 1)
        self._bytes.hold(attempt, size)

    def forget(self, name: AttemptName) -> None:
        """Forget an attempt: its next receive gets other messages."""
        attempt = self._attempts.pop(name, None)
        if attempt is not None:
            self._release(attempt)
            for lease in attempt.leases:
                del self._name_by_lease[lease]

    def _release(self, attempt: ReceiveAttempt) -> None:
        self._counts.hold(attempt, 0)
        self._bytes.hold(attempt, 0)

    def keep_only(self, name: AttemptName, attempt: ReceiveAttempt, places: Sequence[int]) -> ReceiveAttempt | None:
        """Return an attempt with the messages at these places; None if there are none. The others are no longer in flight.

        It is remembered so, or forgotten, unless another one took its place meanwhile.
        """
        is_known = self._attempts.get(name) is attempt
        if not places:
            if is_known:
                self.forget(name)
            return None
        if len(places) == len(attempt.deliveries):
            return attempt
        deliveries = [attempt.deliveries[place] for place in places]
        kept = replace(attempt, deliveries=deliveries, leases=[attempt.leases[place] for place in places])
        if is_known:
            for lease in set(attempt.leases).difference(kept.leases):
                del self._name_by_lease[lease]
            self._release(attempt)
            self._attempts[name] = kept
            self._counts.hold(kept, 1)
            self._bytes.hold(kept, _size(deliveries))
        return kept

    def on_settled(self, lease: LeaseName) -> None:
        """Forget the attempt that got this lease: its message is being deleted, or its visibility changed."""
        name = self._name_by_lease.get(lease)
        if name is not None:
            self.forget(name)

    def _forget_ended(self) -> None:
        now_s = self._time_s()
        while self._attempts:
            name = next(iter(self._attempts))
            if self._attempts[name].ends_at_s > now_s:
                return
            self.forget(name)


def _size(deliveries: Sequence[Any]) -> int:
    """Return the bytes that deliveries occupy, about."""
    return sum(
        ITEM_OVERHEAD_BYTES
        + sum(len(part or b"") for part in (each.payload, each.metadata, each.trace_context, each.group))
        for each in deliveries
    )
