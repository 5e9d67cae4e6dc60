"""Policies of topics that change, are removed and set again beside consumers, updates, purges and takeovers, on a whole engine.

Random histories in virtual time. Judged are the leases of each group whenever a call has ended, and that all items are
delivered in the end. Not judged are the leases shortly after a change: reservations of that moment may still be leased.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import Final

import pytest

from foqs.core.groups.group_rules import Fairness, GroupRules
from foqs.core.items.item import State, parse_id
from foqs.core.items.life import Event, EventKind
from foqs.queue.engine import EngineSettings
from foqs.queue.port import RowView
from foqs.queue.topic_purge import purge_topic
from foqs_contract.errors import FoqsError
from tests.support.engines import Caller, World, run_in_world
from tests.support.example_counts import examples
from tests.unit.shard.test_limited_topics import EIGHT_GROUPS, GROUPS, LITTLE_MEMORY, ONE, grouped, id_of, set_rules

STEPS: Final = 120
GRACE_S: Final = 1.5
"""A lease above a limit may begin for this long after a change: its reservation is older."""
LIMITS: Final[tuple[Mapping[str, GroupRules], ...]] = (
    {"t": GroupRules(1), "u": GroupRules(2)},
    {"t": GroupRules(2), "u": GroupRules(1)},
    {"t": GroupRules(1)},
    {},
    {"t": GroupRules(3), "u": GroupRules(3)},
    {"t": GroupRules(1), "u": GroupRules(1)},
)
BY_ITEMS: Final = GroupRules(fair=Fairness.ITEMS)
BY_TIME: Final = GroupRules(fair=Fairness.TIME)
TURNS: Final[tuple[Mapping[str, GroupRules], ...]] = (
    {"t": BY_ITEMS, "u": GroupRules(2, Fairness.ITEMS)},
    {"t": BY_ITEMS, "u": GroupRules(1, Fairness.TIME)},
    {"t": BY_TIME, "u": GroupRules(3, Fairness.TIME)},
    {"t": GroupRules(2, Fairness.ITEMS, {"anna": 3}), "u": BY_ITEMS},
    {"t": GroupRules(1), "u": BY_TIME},
    {},
)


class History:
    """One random history of one engine after the other."""

    def __init__(
        self, world: World, settings: EngineSettings, seed: int, policies: Sequence[Mapping[str, GroupRules]]
    ) -> None:
        self.world = world
        self.settings = settings
        self.random = Random(seed)
        self.policies = policies
        self.rules: Mapping[str, GroupRules] = {}
        self.changed_s = 0.0
        self.former: Counter[tuple[str, bytes]] = Counter()
        self.excess: list[str] = []
        self.ids: list[str] = []
        self.is_over = False

    async def play(self) -> None:
        await self.take_over()
        self.set_rules(self.policies[0])
        consumers = [asyncio.ensure_future(self.consume()) for _ in range(3)]
        for _ in range(STEPS):
            with contextlib.suppress(FoqsError):  # what it changes may be leased, gone, or of another host
                await self.step()
            self.check()
        self.is_over = True
        await asyncio.gather(*consumers)
        await self.world.pass_s(40)  # leases and delays have ended
        await self.deliver_all()

    async def take_over(self) -> None:
        self.engine = await self.world.counted_engine(self.settings)
        self.caller = Caller(self.world, self.engine)
        self.set_rules(self.rules)

    def set_rules(self, rules: Mapping[str, GroupRules]) -> None:
        set_rules(self.engine, rules)
        self.rules = rules
        self.changed_s = self.world.loop.time()

    async def step(self) -> None:
        random = self.random
        kind = random.choices(
            ("enqueue", "rules", "update", "cancel", "purge", "takeover", "wait"), (50, 10, 15, 5, 2, 2, 16)
        )[0]
        if kind == "enqueue":
            items = [
                grouped(
                    random.choice((*GROUPS, None)),
                    random.choice("tu"),
                    random.randrange(3),
                    random.choice((None, None, 100)),
                )
                for _ in range(random.randint(1, 4))
            ]
            self.ids = [*self.ids, *[each for each in await self.caller.enqueue(items) if isinstance(each, str)]][-30:]
        elif kind == "rules":
            self.set_rules(random.choice(self.policies))
        elif kind == "update" and self.ids:
            number = parse_id(random.choice(self.ids), "id")[1]
            delay_ms = random.choice((None, None, 0, 50))
            update = Event(EventKind.UPDATE, number, "default", priority=random.randrange(3), delay_ms=delay_ms)
            await self.caller.apply([(1, update)])
        elif kind == "cancel" and self.ids:
            await self.caller.cancel(random.choice(self.ids))
        elif kind == "purge":
            shards = [*self.engine.shards.values()]
            await purge_topic(shards, ("default", random.choice("tu")), self.world.loop.time() + 5)
        elif kind == "takeover":
            await self.engine.abort()
            await self.take_over()
        else:
            await asyncio.sleep(random.random() * 0.1)

    async def consume(self) -> None:
        random = self.random
        while not self.is_over:
            wait_ms, lease_ms = random.choice((0, 20, 100)), random.choice((100, 400))
            try:
                found = await self.caller.dequeue([("t", random.randint(1, 4)), ("u", 2)], wait_ms, lease_ms)
                for item in found.items:
                    await self.settle(item)
            except FoqsError:
                await asyncio.sleep(0.02)  # its host is gone, or its lease has ended
            self.check()
            await asyncio.sleep(0.001)

    async def settle(self, item: RowView) -> None:
        kinds = (EventKind.ACK, EventKind.NACK, EventKind.RELEASE, EventKind.EXTEND, None)
        kind = self.random.choices(kinds, (50, 15, 10, 5, 20))[0]
        if kind is EventKind.NACK:
            await self.caller.do(kind, [item], delay_ms=self.random.choice((None, 0, 100)))
        elif kind is not None:
            await self.caller.do(kind, [item])
        elif self.random.random() < 0.25:
            await self.caller.cancel(id_of(item))
        if self.random.random() < 0.3:
            await asyncio.sleep(self.random.random() * 0.1)

    def check(self) -> None:
        """Note each lease that has begun above the limit of its group."""
        leases = Counter(
            (row.topic, row.item_group)
            for table in self.world.database.tables.values()
            for row in table.rows.values()
            if row.state is State.LEASED and row.item_group is not None
        )
        now_s = self.world.loop.time()
        for key, count in leases.items():
            rules = self.rules.get(key[0])
            limit = None if rules is None else rules.leases_max
            allowed = max(count if limit is None else limit, self.former[key])
            if count > allowed and now_s > self.changed_s + GRACE_S:
                self.excess.append(f"{key} has {count} leases, {now_s - self.changed_s:.1f} s after the last change")
        self.former = leases

    async def deliver_all(self) -> None:
        for _ in range(500):
            found = await self.caller.dequeue([("t", 5), ("u", 5)], 2_500)
            if not found.items:
                return
            await self.caller.do(EventKind.ACK, found.items)


@pytest.mark.parametrize(
    "settings", [ONE, EIGHT_GROUPS, LITTLE_MEMORY], ids=["all in memory", "eight", "little memory"]
)
@pytest.mark.parametrize("policies", [LIMITS, TURNS], ids=["limits", "turns"])
@pytest.mark.parametrize("seed", range(examples(4)))
def test_limits_hold_and_all_items_are_delivered_although_policies_change(
    settings: EngineSettings, policies: Sequence[Mapping[str, GroupRules]], seed: int
) -> None:
    async def story(world: World) -> None:
        history = History(world, settings, seed, policies)
        await history.play()
        assert not history.excess, history.excess
        assert world.rows() == []
        # A limit that falls below the present leases is an excess for the check of the memory.
        broken = [each for each in world.broken if "invariant 23" not in each]
        assert not broken, broken
        world.broken.clear()

    run_in_world(story)
