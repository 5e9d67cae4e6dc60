"""The items that a consumer has in hand, and their leases: pure bookkeeping.

Holds `Hand` and `Held`. Always true: never more than `items_max` items are in
hand or asked for; at most `concurrency` handlers run; every item leaves once,
with one fate; what was lost is begun by nobody, and told to no host. Times are
seconds of one clock. Knows nothing of calls and handlers.

    taken ▶ WAITING ──begin──▶ RUNNING ──end──▶ SETTLING ──settle──▶ GONE
               │  └──drain───────────────────────▲  └──(told to no avail)──▶ GONE, lost
               └──lease over──▶ GONE, lost   RUNNING ──lease over──▶ RUNNING, lost ──end──▶ GONE
"""

from __future__ import annotations

import enum
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import Final

from foqs_client.consumer.job import Job
from foqs_client.consumer.verdict import Fate, Verdict
from foqs_client.types import Delivery

RENEW_SHARE: Final = 0.5
"""A lease is renewed when so much of it is over."""
ITEMS_BESIDE_MIN: Final = 100
"""A call beside others is not worth what it costs for fewer."""
ROUNDING_S: Final = 0.001
"""A lease may end this much earlier than it says: a host counts whole milliseconds."""
AGAIN_S_MIN: Final = 0.05
"""A renewal that failed is not tried again sooner."""


class State(enum.Enum):
    WAITING = enum.auto()
    RUNNING = enum.auto()
    SETTLING = enum.auto()
    GONE = enum.auto()


class Held:
    """One item.

    Attributes:
        job: what its handler has; None while nobody has begun it.
        until_s: when its lease ends.
        lease_ms: how long the next renewal makes the lease; None: as long as the item's own duration.
        renewing: a renewal is under way. There is one at a time, so that hosts see them in order.
        verdict: what is to be told of it, once its handler ended.
    """

    __slots__ = (
        "delivery",
        "group",
        "job",
        "lease_ms",
        "lost",
        "own_lease_s",
        "renewing",
        "state",
        "until_s",
        "verdict",
    )

    def __init__(self, delivery: Delivery, now_s: float, lease_ms: int | None) -> None:
        self.delivery = delivery
        self.job: Job | None = None
        self.state = State.WAITING
        self.own_lease_s = delivery.lease_remaining_ms / 1_000
        self.until_s = _lease_end_s(self, now_s, None)
        self.lease_ms = lease_ms
        self.renewing = False
        self.lost = False
        self.verdict: Verdict | None = None
        self.group: _Group | None = None


class _Group:
    """Items whose leases are looked at together: those of one reply. Those that have ended leave it."""

    __slots__ = ("held",)

    def __init__(self, held: Iterable[Held]) -> None:
        self.held = dict.fromkeys(held)
        for one in self.held:
            if one.group is not None:
                one.group.held.pop(one, None)
            one.group = self


class Hand:
    """All items of one consumer.

    Args:
        items_max: in hand or asked for.
        concurrency: handlers that run.
        lease_ms: of every delivery; None: the items' own.

    Attributes:
        fates: how many items have left, by what they ended as.
        running: how many handlers run.
    """

    def __init__(self, items_max: int, concurrency: int, lease_ms: int | None = None) -> None:
        self.items_max = items_max
        self.concurrency = concurrency
        self.fates: Counter[Fate] = Counter()
        self.running = 0
        self._lease_ms = lease_ms
        self._held: dict[Held, None] = {}
        self._waiting: deque[Held] = deque()
        self._waiting_count = 0
        self._asked = 0
        self._moments: list[tuple[float, int, bool, _Group]] = []
        """When a group is to be looked at: whether its leases are over, or are to be renewed."""
        self._numbers = 0

    def __len__(self) -> int:
        return len(self._held)

    # ------------------------------------------------------------------ coming

    @property
    def room(self) -> int:
        """How many more items may be asked for."""
        return self.items_max - len(self._held) - self._asked

    @property
    def waiting(self) -> int:
        """Items that no handler has begun."""
        return self._waiting_count

    def wants(self, *, beside: bool = False) -> bool:
        """It is worth a call: a quarter of the bound is free, or a handler has nothing to do.

        Args:
            beside: others are under way: it has to be for a quarter, and for some number of items.
        """
        room, quarter = self.room, max(1, self.items_max // 4)
        if beside:
            return room >= max(quarter, ITEMS_BESIDE_MIN)
        return room >= quarter or (
            room > 0 and not self._waiting_count and not self._asked and self.running < self.concurrency
        )

    def ask(self, items: int) -> None:
        """A call for so many is made."""
        assert 0 < items <= self.room
        self._asked += items

    def take(self, items: int, found: Sequence[Delivery], now_s: float) -> Sequence[Delivery]:
        """The call for so many ended and brought these. Returns what is beyond the bound, for whoever gives it back."""
        self._asked -= items
        surplus = found[items:]
        if surplus:
            found = found[:items]
        taken = [Held(delivery, now_s, self._lease_ms) for delivery in found]
        self._held.update(dict.fromkeys(taken))
        self._waiting.extend(taken)
        self._waiting_count += len(taken)
        self._watch(taken, now_s)
        return surplus

    # ----------------------------------------------------------------- handlers

    def begin(self) -> Held | None:
        """The item that is to be begun now; None where there is none, or enough handlers run."""
        if self.running >= self.concurrency:
            return None
        waiting = self._waiting
        while waiting:
            held = waiting.popleft()
            if held.state is State.WAITING:
                self._waiting_count -= 1
                self.running += 1
                held.state = State.RUNNING
                return held
        return None

    def end(self, held: Held, verdict: Verdict) -> bool:
        """Its handler has ended. False: it was lost before, and nothing is to be told."""
        assert held.state is State.RUNNING
        self.running -= 1
        if held.lost:
            self._leave(held, Fate.LOST)
            return False
        self._settle(held, verdict)
        return True

    def running_now(self) -> list[Held]:
        """Those whose handlers run."""
        return [held for held in self._held if held.state is State.RUNNING]

    def drain(self, verdict: Verdict) -> list[Held]:
        """Those that nobody has begun, and nobody will: they are to be told with this verdict."""
        found = [held for held in self._waiting if held.state is State.WAITING]
        self._waiting.clear()
        self._waiting_count = 0
        for held in found:
            self._settle(held, verdict)
        return found

    def settle(self, told: Sequence[Held]) -> None:
        """What was to be told of these is told: they end as that."""
        for held in told:
            assert held.state is State.SETTLING
            assert held.verdict is not None
            held.state = State.GONE
            del self._held[held]
            self.fates[held.verdict.fate] += 1

    def settle_in_vain(self, held: Held) -> None:
        """What was to be told was told to no avail: it is lost."""
        assert held.state is State.SETTLING
        self._leave(held, Fate.LOST)

    def _settle(self, held: Held, verdict: Verdict) -> None:
        held.state = State.SETTLING
        held.verdict = verdict
        if held.group is not None:
            held.group.held.pop(held, None)
            held.group = None

    def _leave(self, held: Held, fate: Fate) -> None:
        held.state = State.GONE
        self.fates[fate] += 1
        del self._held[held]
        if held.group is not None:
            held.group.held.pop(held, None)
            held.group = None

    # ------------------------------------------------------------------- leases

    @property
    def next_s(self) -> float | None:
        """When `due` has something to say, or may have."""
        moments = self._moments
        while moments and not moments[0][3].held:
            heappop(moments)
        return moments[0][0] if moments else None

    def due(self, now_s: float) -> tuple[list[Held], list[Held]]:
        """Items whose leases are to be renewed now, and those that are lost from now on."""
        renew: list[Held] = []
        lost: list[Held] = []
        moments = self._moments
        while moments and moments[0][0] <= now_s:
            _, _, over, group = heappop(moments)
            if not over:
                renew += group.held
                continue
            lost += [held for held in group.held if held.until_s <= now_s]
        for held in lost:
            self.lose(held)
        return [held for held in renew if not held.lost and held.until_s > now_s], lost

    def lose(self, held: Held) -> None:
        """Its lease is over."""
        held.lost = True
        if held.job is not None:
            held.job.lost = True
        if held.state is State.WAITING:
            self._waiting_count -= 1
            self._leave(held, Fate.LOST)
        elif held.group is not None:
            held.group.held.pop(held, None)
            held.group = None

    def renewal_sent(self, held: Sequence[Held], sent_s: float, lease_ms: int | None) -> None:
        """Books a renewal that is sent now, as far as it shortens leases: its reply may be lost. Arguments as for `renewed`."""
        shortened: list[Held] = []
        for one in held:
            until_s = _lease_end_s(one, sent_s, lease_ms)
            if until_s < one.until_s and _is_live(one):
                one.until_s = until_s
                shortened.append(one)
        self._watch(shortened, sent_s)

    def renewed(self, held: Sequence[Held], sent_s: float, lease_ms: int | None) -> None:
        """Books the leases that a renewal gave: as long as it asked for, from the moment at which it was sent.

        Args:
            lease_ms: what that renewal asked for, whatever has been wished for since; None: the items' own durations.
        """
        for one in held:
            one.until_s = _lease_end_s(one, sent_s, lease_ms)
        self._watch([one for one in held if _is_live(one)], sent_s)

    def not_renewed(self, held: Sequence[Held], now_s: float) -> None:
        """It is not known, or not so, that these were renewed: again, in time before they end."""
        live = [one for one in held if _is_live(one)]
        if live:
            group = _Group(live)
            soonest_s = min(one.until_s for one in live)
            self._at(now_s + max(AGAIN_S_MIN, (soonest_s - now_s) * RENEW_SHARE), group, over=False)
            self._at_ends(group)

    def _watch(self, taken: Sequence[Held], now_s: float) -> None:
        """Has leases looked at in groups, those of about the same length together."""
        if not taken:
            return
        lengths = [held.until_s - now_s for held in taken]
        if min(lengths) * 2 >= max(lengths):
            groups: Iterable[list[Held]] = (list(taken),)
        else:
            kinds: dict[int, list[Held]] = {}
            for held, length_s in zip(taken, lengths, strict=True):
                kinds.setdefault(int(length_s * 1_000).bit_length(), []).append(held)
            groups = kinds.values()
        for members in groups:
            group = _Group(members)
            shortest_s = min(held.until_s for held in members) - now_s
            self._at(now_s + shortest_s * RENEW_SHARE, group, over=False)
            self._at_ends(group)

    def _at_ends(self, group: _Group) -> None:
        for until_s in sorted({held.until_s for held in group.held}):
            self._at(until_s, group, over=True)

    def _at(self, moment_s: float, group: _Group, *, over: bool) -> None:
        self._numbers += 1
        heappush(self._moments, (moment_s, self._numbers, over, group))


def _lease_end_s(held: Held, sent_s: float, lease_ms: int | None) -> float:
    return sent_s + (held.own_lease_s if lease_ms is None else lease_ms / 1_000) - ROUNDING_S


def _is_live(held: Held) -> bool:
    return not held.lost and held.state in (State.WAITING, State.RUNNING)
