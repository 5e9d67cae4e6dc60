"""A race in which a consumer process is killed again and again.

Always true: the killed process had no chance to say anything, and another takes its
place at once. At the end every item is lost, done twice, or neither; an item is not
lost if its ack was on the way when its consumer died. Knows nothing of systems.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from perf.lib.race import SPAWN, WARMUP_S, Outcome, Race
from perf.lib.report import percentile
from perf.lib.stage import Stage
from perf.lib.worker import ACKED, ACKING, CONSUME, OVER, PRODUCE, WANTED, Load, Marks, Shared

_GRACE_S: Final = 20.0
_LOOK_S: Final = 0.25


@dataclass(slots=True, frozen=True)
class Account:
    """What became of the items.

    Attributes:
        lost: acknowledged, and never done by a consumer.
        doubled: done, and delivered again all the same.
        in_hand: items that killed consumers had and whose acks were not confirmed.
        again_s: the seconds from a kill until each of them was delivered again, sorted.
    """

    lost: int
    doubled: int
    in_hand: int
    again_s: Sequence[float]

    def figures(self) -> dict[str, Any]:
        return {
            "lost": self.lost,
            "doubled": self.doubled,
            "in_hand": self.in_hand,
            "again": len(self.again_s),
            "again_p50_s": percentile(self.again_s, 0.5),
            "again_max_s": percentile(self.again_s, 1.0),
        }


def account(
    fates: bytes,
    marks: Sequence[bytes],
    seen: Sequence[bytes],
    again_at: Sequence[float],
    killed_at: Sequence[float | None],
) -> Account:
    """Return what became of the items.

    Args:
        fates: for each number 1 if it was acknowledged as durable.
        marks: for each consumer how far it came with each number.
        seen: for each consumer how often it received each number.
        again_at: for each number when it was received again; 0: never.
        killed_at: for each consumer when it was killed; None: it ended by itself.
    """
    import numpy as np

    owned = [np.frombuffer(own, np.uint8) for own in marks]
    acks = sum((own == ACKED).astype(np.uint8) for own in owned)
    maybe = np.zeros(len(fates), bool)
    for own, at in zip(owned, killed_at, strict=True):
        if at is not None:
            maybe |= own == ACKING
    again = np.asarray(again_at)
    lost = (np.frombuffer(fates, np.uint8) == 1) & (acks == 0) & ~maybe
    doubled = acks > 1
    for each in seen:
        doubled |= np.frombuffer(each, np.uint8) > 1
    in_hand, waits = 0, []
    for own, at in zip(owned, killed_at, strict=True):
        if at is not None:
            had = (own > 0) & (own < ACKED)
            in_hand += int(had.sum())
            waits.append((again[had & (again > 0)] - at).clip(0))
    again_s = np.sort(np.concatenate(waits)).tolist() if waits else []
    return Account(int(lost.sum()), int(doubled.sum()), in_hand, again_s)


class KillingRace(Race):
    """One race with spare consumers, each of which replaces a killed one.

    Args:
        loads: of both roles.
        kills: how often a consumer is killed.
    """

    def __init__(self, stage: Stage, loads: Sequence[Load], numbers: int, kills: int) -> None:
        consumers = [load for load in loads if load.role == "consume"]
        spare = [
            replace(load, worker=len(loads) + number)
            for number, load in zip(range(kills), itertools.cycle(consumers), strict=False)
        ]
        super().__init__(stage, [*loads, *spare], numbers)
        self._first = len(loads)
        self._spare = [load.worker for load in spare]
        self._alive = [load.worker for load in consumers]
        self._lease_s = loads[0].lease_s
        self._received = SPAWN.RawArray("B", numbers)
        self._again_at = SPAWN.RawArray("d", numbers)
        self._own = {load.worker: SPAWN.RawArray("B", numbers) for load in (*consumers, *spare)}
        self._killed_at: dict[int, float] = {}
        self._by_worker: dict[int, Any] = {}

    def killing(self, every_s: float, *, warmup_s: float = WARMUP_S) -> tuple[Outcome, Account]:
        """Run producers and consumers, kill a consumer every `every_s` seconds, then empty the queue."""
        return self._guarded(lambda: self._killing(every_s, warmup_s))

    def _killing(self, every_s: float, warmup_s: float) -> tuple[Outcome, Account]:
        self._flags[CONSUME] = self._flags[PRODUCE] = WANTED
        self._sleep(warmup_s, lambda: False)
        before = self._sample()
        for _ in range(len(self._spare)):
            begun = time.monotonic()
            self._kill()
            self._sleep(every_s - (time.monotonic() - begun), lambda: False)
        window = self._changes(before, self._sample())
        self._flags[PRODUCE] = OVER
        self._collect("produce")
        outcome = self._end(window, empty=True)
        return outcome, self._account()

    def _kill(self) -> None:
        victim = self._alive.pop(0)
        process = self._by_worker[victim]
        self._clients_cpu_s()
        self._killed_at[victim] = time.monotonic()
        process.kill()
        process.join()
        self._processes.remove(process)
        worker = self._spare.pop(0)
        self._launch([worker])
        self._alive.append(worker)

    def _start(self) -> None:
        self._launch(range(self._first))

    def _launch(self, workers: Sequence[int]) -> None:
        before = len(self._processes)
        super()._launch(workers)
        self._by_worker |= dict(zip(workers, self._processes[before:], strict=True))

    def _shared(self, worker: int) -> Shared:
        shared = super()._shared(worker)
        if worker in self._own:
            shared.marks = Marks(self._own[worker], self._received, self._again_at)
        return shared

    def _running(self, role: str) -> set[int]:
        return set(self._alive) if role == "consume" else super()._running(role)

    # ------------------------------------------------------------- the count of items

    def _is_empty(self) -> bool:
        time.sleep(_LOOK_S)
        return not self._account().lost

    def _drain_timeout_s(self) -> float:
        return self._lease_s + _GRACE_S

    def _account(self) -> Account:
        fates = bytes(memoryview(self._fates).cast("B"))
        used = fates.rindex(b"\1") + 1 if b"\1" in fates else 0
        workers = list(self._own)
        return account(
            fates[:used],
            [bytes(memoryview(self._own[worker]).cast("B")[:used]) for worker in workers],
            [bytes(memoryview(self._seen[worker]).cast("B")[:used]) for worker in workers],
            memoryview(self._again_at).cast("B").cast("d")[:used],
            [self._killed_at.get(worker) for worker in workers],
        )

    def _count(self, empty: bool) -> int:
        """The account is the result here, and no reason to give no figures."""
        return self._account().lost
