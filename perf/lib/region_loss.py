"""What a lost primary has cost: the ledger of the producers against what is left and what was reported.

Holds `Ledger` and `judged`. A loss is a fault of the product if it is above the stated bound or outside the reported range.
Knows nothing of servers.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Final

from foqs_client import Client, FoqsError, Item, UnknownOutcome
from perf.lib.running import running

CONDITIONS: Final = ("within_bound", "within_report", "once", "only_sent")
"""The conditions of a `RegionLoss`."""
_PRODUCERS: Final = 8
_CALL_MS: Final = 5_000


class Ledger:
    """What producers have sent to a topic, and what was acknowledged to them. Moments are seconds of one clock.

    Attributes:
        sent_s: when each payload was sent that was not refused.
        acknowledged: of each acknowledged payload, its shard, and when. In the order of the acknowledgements.
    """

    def __init__(self, topic: str) -> None:
        self.sent_s: dict[bytes, float] = {}
        self.acknowledged: dict[bytes, tuple[int, float]] = {}
        self._topic = topic
        self._numbers = itertools.count()

    async def enqueue(self, client: Client, timeout_ms: int | None = None) -> FoqsError | None:
        """Enqueue one item. Return why it was not acknowledged; None: it was."""
        payload = b"%d" % next(self._numbers)
        self.sent_s[payload] = time.monotonic()
        try:
            [result] = await client.enqueue([Item(self._topic, payload)], timeout_ms=timeout_ms)
            item = result.require()
        except UnknownOutcome as error:
            return error
        except FoqsError as error:
            del self.sent_s[payload]
            return error
        self.acknowledged[payload] = int(item.partition("-")[0]), time.monotonic()
        return None

    def producers(self, client: Client, rate: float) -> AbstractAsyncContextManager[None]:
        """Let producers send this many items a second, one in a call, whatever happens, until the block ends."""
        begun_s = time.monotonic()
        starts_s = [begun_s + number / rate for number in range(_PRODUCERS)]
        return running(self._produce(client, start_s, _PRODUCERS / rate) for start_s in starts_s)

    async def _produce(self, client: Client, due_s: float, pause_s: float) -> None:
        while True:
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            due_s = max(due_s, time.monotonic() - pause_s) + pause_s
            await self.enqueue(client, _CALL_MS)


@dataclass(slots=True, frozen=True)
class RegionLoss:
    """What the loss of a primary has cost. All conditions hold unless the product has a fault.

    Attributes:
        acknowledged: the number of acknowledged items.
        lost: how many of them were not left.
        unanswered: the number of items that were sent, neither acknowledged nor refused, and not left.
        reported_min: the least number of lost items by the report.
        reported_max: the greatest one; None: it is unknown.
        acknowledged_ms: the time from the first to the last acknowledgement of a lost item, of the shard where it is longest.
        accepted_ms: the least time in which the lost items of a shard were accepted, of the shard where it is longest.
        within_bound: `accepted_ms` is less than the bound.
        within_report: the loss is in the range of the report, for each shard.
        once: each item came once.
        only_sent: each item that came had been sent, and not refused.
    """

    acknowledged: int
    lost: int
    unanswered: int
    reported_min: int
    reported_max: int | None
    acknowledged_ms: float
    accepted_ms: float
    within_bound: bool
    within_report: bool
    once: bool
    only_sent: bool

    @property
    def faults(self) -> list[str]:
        """The names of the conditions that do not hold."""
        return [name for name in CONDITIONS if not getattr(self, name)]


def judged(
    ledger: Ledger, taken: Sequence[bytes], reported: Sequence[Mapping[str, Any]], bound_ms: float
) -> RegionLoss:
    """Return the real loss, and whether it is within the bound and the report.

    Args:
        taken: the payloads that were dequeued.
        reported: the rows of `foqs region report`, one for each shard.
        bound_ms: `max_lag_ms`.
    """
    left = set(taken)
    lost: dict[int, list[bytes]] = {}
    for payload, (shard, _) in ledger.acknowledged.items():
        if payload not in left:
            lost.setdefault(shard, []).append(payload)
    count = sum(map(len, lost.values()))
    unanswered = len(ledger.sent_s.keys() - ledger.acknowledged.keys() - left)
    acknowledged_ms, accepted_ms = 0.0, 0.0
    for payloads in lost.values():
        acknowledged_s = [ledger.acknowledged[each][1] for each in payloads]
        acknowledged_ms = max(acknowledged_ms, 1_000 * (max(acknowledged_s) - min(acknowledged_s)))
        # An item was accepted after it was sent, and committed before it was acknowledged.
        last_s = max(ledger.sent_s[each] for each in payloads)
        accepted_ms = max(accepted_ms, 1_000 * (last_s - min(acknowledged_s)))
    ranges = {row["shard"]: (row["lost_enqueues_min"], row["lost_enqueues_max"]) for row in reported}
    least = sum(low or 0 for low, _ in ranges.values())
    most = None if None in (high for _, high in ranges.values()) else sum(high for _, high in ranges.values())
    return RegionLoss(
        acknowledged=len(ledger.acknowledged),
        lost=count,
        unanswered=unanswered,
        reported_min=least,
        reported_max=most,
        acknowledged_ms=acknowledged_ms,
        accepted_ms=accepted_ms,
        within_bound=accepted_ms < bound_ms,
        # Items that were inserted and not acknowledged count in the report, too.
        within_report=least <= count + unanswered and all(_covers(ranges, *each) for each in lost.items()),
        once=len(taken) == len(left),
        only_sent=left <= ledger.sent_s.keys(),
    )


def _covers(ranges: Mapping[int, tuple[int | None, int | None]], shard: int, lost: Sequence[bytes]) -> bool:
    if shard not in ranges:
        return False
    high = ranges[shard][1]
    return high is None or len(lost) <= high
