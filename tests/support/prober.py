"""Finds out when shards accept items again, by enqueueing items.

Always true: a shard counts as served when an enqueue that began after the question
was acknowledged; each attempt is in the history. Does not know why a shard is not
served.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from foqs_client import Client, FoqsError, Item
from tests.support.history import History
from tests.support.open_load import LEASE_MS, TOPICS
from tests.support.recording_client import RecordingClient
from tests.support.workload import pause, wall_ms

PROCESS: Final = "prober"
TRY_MS: Final = 300
"""The timeout of a try. It is 1.5 s longer if the owner is frozen: a client waits for a late reply. Times are no more exact than this."""
_TRIES_PER_TIME: Final = 20
_DOUBLED_MAX: Final = 4
"""After this many tries the time of a try is doubled, up to this many times: a machine may be too slow for the first one."""
_PAUSE_S: Final = 0.02


class Prober:
    """Args:
    slots: by shard, one of its slots of keys.
    """

    def __init__(self, history: History, slots: Mapping[int, int]) -> None:
        self._history = history
        self._slots = slots
        self._story = uuid.uuid4().hex[:8]
        self._numbers = itertools.count()

    async def served(self, shards: Iterable[int], addresses: Sequence[str], since_s: float) -> dict[int, float]:
        """Seconds from `since_s` (as `time.monotonic` counts) until each shard took an item.

        Args:
            addresses: hosts to ask, each `host:port`.
        """
        numbers = sorted(shards)
        found = await asyncio.gather(*(self._served(shard, addresses, since_s) for shard in numbers))
        return dict(zip(numbers, found, strict=True))

    async def _served(self, shard: int, addresses: Sequence[str], since_s: float) -> float:
        for tries in itertools.count():
            try_ms = TRY_MS << min(tries // _TRIES_PER_TIME, _DOUBLED_MAX)
            # A new client reads the routing table again.
            async with Client("foqs://" + ",".join(addresses)) as client:
                asking = RecordingClient(client, self._history, PROCESS, wall_ms)
                name = f"probe-{self._story}-{next(self._numbers)}"
                item = Item(
                    TOPICS[0], name.encode(), lease_ms=LEASE_MS, idempotency_key=f"~{self._slots[shard]:03x}{name}"
                )
                with contextlib.suppress(FoqsError):
                    [result] = await asking.enqueue([item], timeout_ms=try_ms)
                    if result.id is not None:
                        return time.monotonic() - since_s
            await pause(_PAUSE_S)
        raise AssertionError("there is a next number")
