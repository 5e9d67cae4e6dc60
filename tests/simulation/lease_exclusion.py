"""Plays consumers whose lease renewals are slow or lost, and checks that no two handlers rely on one lease.

Two consumers share an in-memory host. Replies to extensions are late or lost.
Handlers run longer than their leases, and ask for longer ones. The checks: when a
handler starts an item, every earlier handler of the item that still runs knows that
its lease is lost; an item is done once. `python -m tests.simulation.lease_exclusion`
plays the seeds; `--plant NAME` plants a bug first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, Final

from foqs.testing import FakeHost
from foqs_client import Client, Item, Outcome, UnknownOutcome, Unreachable
from foqs_client.consumer import Consumer, Job
from foqs_client.consumer.in_flight_set import InFlightItem, InFlightSet
from tests.simulation.planting import plant
from tests.simulation.played_seeds import play_seeds
from tests.support.virtual_time import run_virtual

SEEDS: Final = range(16)
ITEMS: Final = 12
LEASE_MS: Final = 2_000
UNTIL_S: Final = 3_600.0


def play(seed: int) -> tuple[list[str], int]:
    """Play one seed. Returns the violations and the number of lost leases."""
    violations: list[str] = []
    lost: list[int] = []

    async def main() -> None:
        rng = Random(seed)
        async with FakeHost({"namespace.attempts_max_default": 0}) as fake:
            await fake.client().enqueue([Item("t", str(n).encode(), lease_ms=LEASE_MS) for n in range(ITEMS)])
            world = _HandlerWorld(rng, violations)
            consumers = [
                Consumer(
                    _unreliable(fake.client(), rng),
                    world.handle,
                    ["t"],
                    concurrency=4,
                    in_flight=6,
                    cancel_lost=seed % 2 == 0,
                    rng=rng,
                )
                for _ in range(2)
            ]
            running = [asyncio.ensure_future(consumer.run()) for consumer in consumers]
            while len(world.done) < ITEMS:  # noqa: ASYNC110 - virtual time
                await asyncio.sleep(1)
            for consumer in consumers:
                consumer.stop()
            lost.extend([counts.lost for counts in await asyncio.gather(*running)])

    run_virtual(main, until_s=UNTIL_S)
    return violations, sum(lost)


class _HandlerWorld:
    """The handlers, and the items whose lease they rely on."""

    def __init__(self, rng: Random, violations: list[str]) -> None:
        self._rng = rng
        self._violations = violations
        self._running: dict[Job, None] = {}
        self.done: set[str] = set()

    async def handle(self, job: Job) -> None:
        for other in self._running:
            if other.id == job.id and not other.lost:
                text = f"attempt {job.attempt} of item {job.id} began while attempt {other.attempt} relied on its lease"
                self._violations.append(f"invariant 5: {text}")
        self._running[job] = None
        try:
            rng = self._rng
            await asyncio.sleep(rng.uniform(0.0, 2.5))
            if rng.random() < 0.7:
                job.extend(rng.choice((1_000, 20_000, 120_000)))
            await asyncio.sleep(rng.choice((0.1, 3.0, 20.0)))
        finally:
            del self._running[job]
        if not job.lost:
            if job.id in self.done:
                self._violations.append(f"invariant 4: item {job.id} was done twice")
            self.done.add(job.id)


def _unreliable(client: Client, rng: Random) -> Client:
    """Return a client whose extensions are not sent, or whose replies are late or lost."""
    extend = client.extend

    async def unreliable(leases: Any, *, lease_ms: int | None = None, timeout_ms: int | None = None) -> list[Outcome]:
        if rng.random() < 0.5:
            await asyncio.sleep(rng.uniform(0.0, 0.3))
            raise Unreachable("nobody there")
        outcomes = await extend(leases, lease_ms=lease_ms, timeout_ms=timeout_ms)
        await asyncio.sleep(rng.uniform(0.0, 0.9))
        if rng.random() < 0.3:
            raise UnknownOutcome("no reply has come")
        return outcomes

    client.extend = unreliable  # type: ignore[method-assign]
    return client


# ---------------------------------------------------------------------- bugs


def renewal_recorded_at_wished_length() -> None:
    """A renewal is recorded with the length that the handler wants now, not with the length that was sent."""

    def renewed(self: InFlightSet, items: Sequence[InFlightItem], sent_s: float, lease_ms: int | None) -> None:
        for one in items:
            original(self, [one], sent_s, one.lease_ms)

    original = plant(InFlightSet, "on_renewed", renewed)


def losses_unreported() -> None:
    """A handler does not see that its lease is lost."""
    original = InFlightSet.mark_lost

    def lose(self: InFlightSet, item: InFlightItem) -> None:
        original(self, item)
        if item.job is not None:
            item.job.lost = False

    plant(InFlightSet, "mark_lost", lose)


def shortened_when_answered() -> None:
    """A renewal that shortens a lease counts only with its reply, which may be lost."""
    plant(InFlightSet, "on_renewal_sent", lambda self, items, sent_s, lease_ms: None)


BUGS: Final[Mapping[str, Callable[[], None]]] = {
    "renewal-recorded-at-wished-length": renewal_recorded_at_wished_length,
    "losses-unreported": losses_unreported,
    "shortened-when-answered": shortened_when_answered,
}


def main() -> int:
    return play_seeds(__doc__, SEEDS, play, "lost leases", BUGS)


if __name__ == "__main__":
    raise SystemExit(main())
