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
from typing import Any, Final

from foqs_client import Client, FoqsError, Item, UnknownOutcome
from perf.lib.running import running

TOPIC: Final = "loss"
_PRODUCERS: Final = 8
_CALL_MS: Final = 5_000


class Ledger:
    """What producers have sent, and what was acknowledged to them. Moments are seconds of one clock.

    Attributes:
        sent_s: when each payload was sent that was not refused.
        acknowledged: of each acknowledged payload, its shard, and when.
    """

    def __init__(self) -> None:
        self.sent_s: dict[bytes, float] = {}
        self.acknowledged: dict[bytes, tuple[int, float]] = {}
        self._numbers = itertools.count()

    def producers(self, client: Client, rate: float) -> AbstractAsyncContextManager[None]:
        """Let producers send this many items a second, one in a call, whatever happens, until the block ends."""
        begun_s = time.monotonic()
        starts_s = [begun_s + number / rate for number in range(_PRODUCERS)]
        return running(self._produce(client, start_s, _PRODUCERS / rate) for start_s in starts_s)

    async def _produce(self, client: Client, due_s: float, pause_s: float) -> None:
        while True:
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            due_s = max(due_s, time.monotonic() - pause_s) + pause_s
            payload = b"%d" % next(self._numbers)
            self.sent_s[payload] = time.monotonic()
            try:
                [result] = await client.enqueue([Item(TOPIC, payload)], timeout_ms=_CALL_MS)
                item = result.require()
            except UnknownOutcome:
                continue
            except FoqsError:
                del self.sent_s[payload]
            else:
                self.acknowledged[payload] = int(item.partition("-")[0]), time.monotonic()


def judged(
    ledger: Ledger, taken: Sequence[bytes], reported: Sequence[Mapping[str, Any]], bound_ms: int
) -> dict[str, Any]:
    """Return the real loss as figures, and whether it is within the bound and the report, and each item came once.

    Args:
        taken: the payloads that were dequeued afterwards.
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
    return {
        "acknowledged": len(ledger.acknowledged),
        "lost": count,
        "unanswered": unanswered,
        "reported_min": least,
        "reported_max": most,
        "acknowledged_ms": acknowledged_ms,
        "accepted_ms": accepted_ms,
        "within_bound": accepted_ms < bound_ms,
        "once": len(taken) == len(left),
        # Items that were inserted and not acknowledged count in the report, too.
        "within_report": least <= count + unanswered and all(_covers(ranges, *each) for each in lost.items()),
    }


def _covers(ranges: Mapping[int, tuple[int | None, int | None]], shard: int, lost: Sequence[bytes]) -> bool:
    if shard not in ranges:
        return False
    high = ranges[shard][1]
    return high is None or len(lost) <= high
