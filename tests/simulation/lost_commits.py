"""Plays a host whose database fails over to a copy that lacks its last commits, and checks that it believes the copy.

Writers and a consumer use one shard. At random moments the server is replaced by its state of some
flushes ago: what was acknowledged since is lost, which no host can mend. The checks: an item or an ack
is reported as done only if some commit held it, also if the failover hides the outcome; no flush follows
on one that is lost; at the end the memory is what the tables hold. `python -m
tests.simulation.lost_commits` plays the seeds; `--plant NAME` plants a bug first.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import fields
from random import Random
from typing import Any, Final

from foqs.core.flush.fence import CommitOutcome, Fence, Owner
from foqs.core.items.item import parse_id
from foqs.core.items.life import EventKind
from foqs.shard import writer
from foqs.store.in_memory.memory_table import ShardTables
from foqs_contract.errors import FoqsError
from tests.simulation.planting import plant
from tests.simulation.played_seeds import play_seeds
from tests.support.builders import engine_settings
from tests.support.engines import Caller, World, run_in_world
from tests.support.memory_check import differences, is_at_rest

SEEDS: Final = range(8)
SHARD: Final = 1
WRITERS: Final = 4
FAILOVERS: Final = 6
COPIES: Final = 6
"""The states that a failover may bring back: those after the last flushes."""


def play(seed: int) -> tuple[list[str], int]:
    """Play one seed. Returns the violations and the number of commits that were lost."""
    violations: list[str] = []
    lost: list[int] = []

    async def story(world: World) -> None:
        rng = Random(seed)
        engine = await world.engine(engine_settings(SHARD))
        server = _Server(world, violations)
        caller = Caller(world, engine)
        working = [asyncio.ensure_future(_enqueue(caller, server, rng)) for _ in range(WRITERS)]
        working.append(asyncio.ensure_future(_consume(caller, server, rng)))
        for _ in range(FAILOVERS):
            await world.pass_s(rng.uniform(0.05, 0.4))
            lost.append(server.fail_over(rng.randrange(COPIES)))
        await world.pass_s(1.0)
        for task in working:
            task.cancel()
        await asyncio.wait(working)
        await world.until(lambda: SHARD in engine.shards and is_at_rest(engine.shards[SHARD]))
        violations.extend(differences(engine.shards[SHARD], server.tables))

    run_in_world(story)
    return violations, sum(lost)


class _Server:
    """The tables, their copies, and all that was ever committed."""

    def __init__(self, world: World, violations: list[str]) -> None:
        self.tables = world.database.tables[SHARD]
        self._database = world.database
        self._violations = violations
        self._copies: deque[tuple[int, dict[str, Any]]] = deque(maxlen=COPIES)
        self._flush = (self.tables.owner.epoch, self.tables.owner.flush)
        self._commits = 0
        self.inserted: set[int] = set(self.tables.rows)
        self.deleted: set[int] = set()
        self._database.on_committed = self._on_committed
        self._copy()

    def fail_over(self, copies_back: int) -> int:
        """Bring an earlier state back. Return how many commits are lost."""
        for connection in sorted(self._database._alive):
            self._database.kill(connection)
        copies_back = min(copies_back, len(self._copies) - 1)
        for _ in range(copies_back):
            self._copies.pop()
        commits, state = self._copies[-1]
        for name, value in state.items():
            setattr(self.tables, name, _copied(value))
        self._database.unlock(self.tables)
        lost, self._commits = self._commits - commits, commits
        self._flush = (self.tables.owner.epoch, self.tables.owner.flush)
        return lost

    def _on_committed(self, shard: int, fence: Fence) -> None:
        epoch, flush = self._flush
        if fence.epoch == epoch and fence.flush != flush + 1:
            self._violations.append(f"invariant 12: flush {fence.flush} of epoch {epoch} was committed after {flush}")
        self._flush = (fence.epoch, fence.flush)
        self._commits += 1
        self.deleted |= self.inserted - self.tables.rows.keys()
        self.inserted |= self.tables.rows.keys()
        self._copy()

    def _copy(self) -> None:
        names = [each.name for each in fields(ShardTables) if each.name not in ("locked_by", "unlocked")]
        self._copies.append((self._commits, {name: _copied(getattr(self.tables, name)) for name in names}))

    def check(self, ids: list[str], committed: set[int], what: str) -> None:
        """Check that a commit did what was reported to a caller."""
        for name in ids:
            if parse_id(name, "id")[1] not in committed:
                self._violations.append(f"invariant 16: {name} was reported as {what}, and no commit did it")


def _copied(value: Any) -> Any:
    """Copy a part of the tables: flushes change rows, and lists of keys, in place."""
    return {key: copy(each) for key, each in value.items()} if isinstance(value, dict) else copy(value)


async def _enqueue(caller: Caller, server: _Server, rng: Random) -> None:
    while True:
        with contextlib.suppress(FoqsError):
            server.check(await caller.put(count=rng.randint(1, 3)), server.inserted, "enqueued")
        await asyncio.sleep(rng.expovariate(100))


async def _consume(caller: Caller, server: _Server, rng: Random) -> None:
    while True:
        with contextlib.suppress(FoqsError):
            found = (await caller.get(count=rng.randint(1, 4), wait_ms=50, lease_ms=60_000)).items
            outcomes = await caller.do(EventKind.ACK, found)
            done = [f"{item.shard}-{item.row.id}" for item, outcome in zip(found, outcomes, strict=True) if not outcome]
            server.check(done, server.deleted, "acked")
        await asyncio.sleep(rng.expovariate(100))


# ---------------------------------------------------------------------- bugs


def behind_is_committed() -> None:
    """An owner row that is several flushes behind counts as that of the flush whose reply was lost."""

    def outcome(fence: Fence, owner: Owner) -> CommitOutcome:
        is_ours = (owner.epoch, owner.nonce) == (fence.epoch, fence.nonce)
        return CommitOutcome.COMMITTED if is_ours and owner.flush < fence.flush - 1 else original(fence, owner)

    original = plant(writer, "commit_outcome", outcome)


BUGS: Final[Mapping[str, Callable[[], None]]] = {"behind-is-committed": behind_is_committed}


def main() -> int:
    return play_seeds(__doc__, SEEDS, play, "lost commits", BUGS)


if __name__ == "__main__":
    raise SystemExit(main())
