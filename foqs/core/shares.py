"""One host's share of what a namespace may enqueue on all hosts of its tier together.

Think of one token bucket for the whole tier, which holds `BURST_S` of the limit.
About once a second every host tells the others how many items it has taken in
all, and how many it was asked to take lately. Between two *rounds*, in each of
which a host has heard of all others, it may take its *part* of what is in the
bucket and of what flows in; what it leaves is in the bucket again at the next
round. So parts need not be exact, nothing is lost when demand moves, and what
was taken too much anywhere is missing everywhere until it is made up for.

A part is a host's demand beside that of all. Always true, while every host hears
the others within `TOLD_PERIODS`: the parts of all hosts make no more than
1 + `LEAST_PART`. For a host counts of its own demand only what it has told for
so long, which the others know by then; a higher demand counts so much later, a
lower one at once. A host that is silent is taken to go on with the part that it
had when it was heard last; it does likewise with those that it does not hear, so
two sides that are cut off from each other go on with what each had.

Knows nothing of how hosts talk, nor which there are. Times are seconds of any
clock that does not go back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable
from dataclasses import dataclass
from math import ceil, exp, inf
from typing import Final, Generic, TypeVar

from foqs.core.rate import MINUTE_S

Host = TypeVar("Host", bound=Hashable)

BURST_S: Final = 2.0
"""So much of the limit may be saved up, by all hosts together."""
LEAST_PART: Final = 0.05
"""All hosts without demand have this part together, so that their first items need not wait."""
TOLD_PERIODS: Final = 1.25
"""What was told so many periods of the exchange ago is known to everybody who hears."""
_TELL_PERIODS: Final = 0.25
"""What is told more often counts as told at once: the least of it."""
_DEMAND_S: Final = 0.4
"""In so long the weight of what was asked for falls to 1/e."""
_ASKED_S: Final = 60.0
"""A namespace that was not asked for so long has no demand, and its bucket is full."""


@dataclass(slots=True, frozen=True)
class Word:
    """What a host tells of a namespace.

    Attributes:
        demand: items a minute that it was asked to take lately, taken or refused.
        enqueued: items that it has taken in all; only differences mean anything.
        items, payload_bytes: what it holds.
    """

    demand: int = 0
    enqueued: int = 0
    items: int = 0
    payload_bytes: int = 0


NOTHING: Final = Word()


@dataclass(slots=True)
class _Told:
    """The least demand that was told between two moments near each other."""

    demand: int
    first_s: float
    last_s: float


class _Heard:
    """What is known of one other host."""

    __slots__ = ("assumed", "part", "word")

    def __init__(self, word: Word) -> None:
        self.word = word
        self.part = 0.0
        self.assumed = 0.0
        """Items that it is taken to have enqueued since, because it is silent."""


class Arrivals:
    """A rate that forgets."""

    __slots__ = ("_at_s", "_per_s")

    def __init__(self) -> None:
        self._per_s = 0.0
        self._at_s = -inf

    def add(self, items: int, now_s: float) -> None:
        self._per_s = self._per_s * exp((self._at_s - now_s) / _DEMAND_S) + items / _DEMAND_S
        self._at_s = now_s

    def per_minute(self, now_s: float) -> int:
        return round(self._per_s * exp((self._at_s - now_s) / _DEMAND_S) * MINUTE_S)

    def is_over(self, now_s: float) -> bool:
        """There were none for a minute."""
        return now_s - self._at_s >= _ASKED_S


class Share(Generic[Host]):
    """Of one namespace, at one host. To whoever enqueues it is a bucket, like `TokenBucket`.

    A call larger than the bucket passes when the bucket is full, and leaves it
    with a debt.

    Args:
        hosts: how many there are, this one included.
        period_s: between two times that a host asks another.
        known: all of them were heard, so what was not spoken of was not asked for: the bucket is full. Otherwise there is
            an item in it, so that the first one passes.

    Attributes:
        part: of the limit and of what is left of a backlog, 0 to 1.
    """

    __slots__ = (
        "_again_s",
        "_arrivals",
        "_at_s",
        "_demand",
        "_elsewhere",
        "_enqueued",
        "_heard",
        "_held_bytes",
        "_held_items",
        "_hosts",
        "_level",
        "_period_s",
        "_round_s",
        "_taken",
        "_tokens",
        "_told",
        "elsewhere_bytes",
        "elsewhere_items",
        "part",
    )

    def __init__(self, hosts: int, period_s: float, now_s: float, *, known: bool) -> None:
        self.part = 1 / hosts
        self.elsewhere_items = 0
        self.elsewhere_bytes = 0
        self._period_s = period_s
        self._arrivals = Arrivals()
        self._told = deque((_Told(0, now_s, now_s),))
        """What this host told of its demand, the oldest first."""
        self._heard: dict[Host, _Heard] = {}
        self._demand = 0
        """Of the other hosts."""
        self._enqueued = 0
        """By this host, in all."""
        self._tokens = inf if known else 1.0
        """What this host may take at `_at_s`: more than fits until it is looked at, less than nothing after a large call."""
        self._at_s = now_s
        self._level = inf if known else 0.0
        """What was in the tier's bucket at the last round."""
        self._round_s = now_s
        self._taken = 0.0
        """By this host, since."""
        self._elsewhere = 0.0
        """By the others, as they told since."""
        self._held_items = 0
        self._held_bytes = 0
        self._hosts = hosts
        self._again_s = inf
        """When more of this host's demand may count, by what it told."""

    # ---------------------------------------------------------------- to enqueue

    def asked(self, items: int, now_s: float) -> None:
        """So many items are to be enqueued, whatever becomes of them."""
        self._arrivals.add(items, now_s)

    def wait_s(self, items: int, per_minute: int, now_s: float) -> float:
        """How long until so many items may pass: 0 now. No longer than it takes the share to follow demand."""
        self._fill(per_minute, now_s)
        missing = min(items, self._most(per_minute)) - self._tokens
        if missing <= 0:
            return 0.0
        alone_s = missing * MINUTE_S / per_minute
        return min(alone_s / self.part, max(alone_s, TOLD_PERIODS * self._period_s))

    def take(self, items: int, per_minute: int, now_s: float) -> None:
        """So many items have passed, after `wait_s` said that they may."""
        self._fill(per_minute, now_s)
        self._tokens -= items
        self._taken += items
        self._enqueued += items

    def give_back(self, items: int) -> None:
        """So many of those that passed need not have."""
        self._tokens += items
        self._taken -= items
        self._enqueued -= items

    def items_most(self, limit: int) -> int:
        """How many items this host may hold, of so many on all hosts."""
        return ceil(self._held_items + self.part * (limit - self._held_items - self.elsewhere_items))

    def bytes_most(self, limit: int) -> int:
        """How many bytes of payload likewise."""
        return ceil(self._held_bytes + self.part * (limit - self._held_bytes - self.elsewhere_bytes))

    # ----------------------------------------------------------- to and from others

    @property
    def is_unknown(self) -> bool:
        """No other host has told anything but nothing."""
        return not (self._demand or self.elsewhere_items or self.elsewhere_bytes)

    def is_over(self, now_s: float) -> bool:
        """Nobody asked here for a minute: there is nothing to tell of demand."""
        return self._arrivals.is_over(now_s)

    def tell(self, now_s: float) -> tuple[int, int]:
        """(demand, enqueued) of this host, which are told to others now."""
        demand = self._arrivals.per_minute(now_s)
        last = self._told[-1]
        if now_s - last.first_s < _TELL_PERIODS * self._period_s:
            last.last_s = now_s
            last.demand = min(last.demand, demand)
        else:
            self._told.append(_Told(demand, now_s, now_s))
        return demand, self._enqueued

    def heard(self, host: Host, word: Word, hosts: int, per_minute: int, *, first: bool) -> None:
        """Another host says so.

        Args:
            hosts: how many there are, this one included.
            per_minute: the limit; 0 for none.
            first: it was not heard before, of any namespace.
        """
        known = self._heard.get(host)
        if known is None:
            # A host that had nothing to tell the last time has taken little since, and one that is new took it before.
            recent_s = 0.0 if first else TOLD_PERIODS * self._period_s + BURST_S
            lately = min(word.enqueued, ceil(recent_s * per_minute / MINUTE_S))
            known = self._heard[host] = _Heard(Word(enqueued=word.enqueued - lately))
        before = known.word
        if word is NOTHING:
            word = Word(enqueued=before.enqueued)
        self._elsewhere += word.enqueued - before.enqueued - known.assumed
        self._demand += word.demand - before.demand
        self.elsewhere_items += word.items - before.items
        self.elsewhere_bytes += word.payload_bytes - before.payload_bytes
        known.word = word
        known.assumed = 0.0
        known.part = _part(word.demand, self._own() + self._demand, hosts)

    def gone(self, host: Host) -> None:
        """That host is there no more: what it was asked for and held counts no longer."""
        known = self._heard.pop(host, None)
        if known is not None:
            self._demand -= known.word.demand
            self.elsewhere_items -= known.word.items
            self.elsewhere_bytes -= known.word.payload_bytes

    def divide(self, hosts: int, per_minute: int, now_s: float) -> None:
        """Has the part follow what is known, of so many hosts, this one included."""
        self._hosts = hosts
        known_s = now_s - TOLD_PERIODS * self._period_s
        while len(self._told) > 1 and self._told[0].last_s <= known_s:
            self._told.popleft()
        self._again_s = self._told[0].last_s + TOLD_PERIODS * self._period_s if len(self._told) > 1 else inf
        own = self._own()
        self._flow(per_minute, now_s)
        self.part = _part(own, own + self._demand, hosts)

    def round(self, hosts: int, silent: Collection[Host], per_minute: int, held: tuple[int, int], now_s: float) -> None:
        """All but the silent were heard since the last round.

        Args:
            silent: those that were not heard lately.
            held: (items, bytes) that this host holds.
        """
        self.divide(hosts, per_minute, now_s)
        self._held_items, self._held_bytes = held
        gained = (now_s - self._round_s) * per_minute / MINUTE_S
        for host in silent:
            assumed = self._reserved(host) * gained
            self._elsewhere += assumed
            known = self._heard.get(host)
            if known is not None:
                known.assumed += assumed
        full = BURST_S * per_minute / MINUTE_S
        level = min(full, self._level) + gained - self._taken - self._elsewhere
        # A debt is forgotten beyond a minute's worth, whatever anybody tells.
        self._level = max(-float(per_minute), min(full, level))
        tokens = self.part * self._level
        if self.part <= LEAST_PART / hosts:
            # What the least part has saved up is not the others' to use up.
            tokens = max(tokens, min(self._tokens, self._most(per_minute)))
        self._tokens = tokens
        self._taken = self._elsewhere = 0.0
        self._at_s = self._round_s = now_s

    # --------------------------------------------------------------------- inside

    def _own(self) -> int:
        """What counts of this host's demand: what it told all the while."""
        return min([told.demand for told in self._told])

    def _reserved(self, host: Host) -> float:
        """The part of a silent host: that of before; an equal one if it was never heard."""
        known = self._heard.get(host)
        return 1 / self._hosts if known is None else known.part

    def _most(self, per_minute: int) -> float:
        return self.part * BURST_S * per_minute / MINUTE_S

    def _fill(self, per_minute: int, now_s: float) -> None:
        if now_s >= self._again_s:
            self.divide(self._hosts, per_minute, now_s)
        self._flow(per_minute, now_s)

    def _flow(self, per_minute: int, now_s: float) -> None:
        gained = (now_s - self._at_s) * self.part * per_minute / MINUTE_S
        self._tokens = min(self._most(per_minute), self._tokens + gained)
        self._at_s = now_s


def _part(demand: int, of: int, hosts: int) -> float:
    """The part of a host with this demand, of the demand of so many hosts."""
    return max(LEAST_PART / hosts, demand / of) if of else 1 / hosts
