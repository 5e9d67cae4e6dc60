"""One agent of a host, with a registry and plans written by hand, under virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from random import Random
from typing import Any

from foqs.testing.virtual_loop import VirtualClock
from shardmgr.agent import Agent, AgentPace
from shardmgr.documents import LAYOUT, MEMBERS, PLAN, parse_member, render_layout, render_plan
from shardmgr.model import Assignment, HeldShard, Layout, Member, Plan, ShardSpec
from shardmgr.primary import Primary
from shardmgr.versions import HostVersions
from tests.support.local_ensemble import LocalEnsemble, LocalRegistry
from tests.support.virtual_time import run_virtual

TIMEOUT_MS = 6_000
PACE = AgentPace(session_margin_ms=500)
ME = Member("one", "nonce-one", "10.0.0.1:7411")
SPOKEN = HostVersions("0.2.0", 8, 1, 2)
LAYOUT_OF_THREE = Layout({number: ShardSpec(number, f"db{number}") for number in (1, 2, 3)})


class Recorder:
    """A holder that records its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.views = 0
        self.known: list[str] = []
        """The calls before the last change of the view."""

    def on_assigned(self, shard: int, database: str, primary: Primary | None) -> None:
        self.calls.append(f"assigned {shard} {database}" + (f" at {primary.server}" if primary else ""))

    def on_release_requested(self, shard: int) -> None:
        self.calls.append(f"release {shard}")

    def on_dropped(self, shard: int) -> None:
        self.calls.append(f"dropped {shard}")

    def on_suspended(self) -> None:
        self.calls.append("suspended")

    def on_resumed(self) -> None:
        self.calls.append("resumed")

    def view_changed(self) -> None:
        self.views += 1
        self.known = [*self.calls]

    def news(self) -> list[str]:
        """Return and clear the recorded calls."""
        calls, self.calls = self.calls, []
        return calls


class AgentSite:
    """A registry, one agent, and a user that writes plans."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.clock = VirtualClock(self.loop)
        self.ensemble = LocalEnsemble(None, self.clock.monotonic_ms)
        self.user = self.ensemble.registry(TIMEOUT_MS)
        self.registry: LocalRegistry
        self.agent: Agent
        self.holder = Recorder()
        self.running: asyncio.Task[None]

    async def start(self, registry: LocalRegistry | None = None, boot_ms: Callable[[], int] | None = None) -> None:
        await self.user.open()
        self.registry = registry or self.ensemble.registry(TIMEOUT_MS)
        self.agent = Agent(self.registry, PACE, boot_ms or self.clock.monotonic_ms, Random(1), lambda: 2.5, SPOKEN)
        await self.registry.open()
        await self.layout(LAYOUT_OF_THREE)
        self.running = asyncio.ensure_future(self.agent.run(ME, self.holder, self.holder.view_changed))
        await self.pass_s(0.1)

    async def layout(self, layout: Layout) -> None:
        await self.put(LAYOUT, render_layout(layout))

    async def plan(self, assignments: Mapping[int, Assignment]) -> None:
        """Assignments that name no database are of the shard's own."""
        epochs = {number: each.epoch for number, each in assignments.items()}
        named = {n: replace(each, database=each.database or f"db{n}") for n, each in assignments.items()}
        await self.put(PLAN, render_plan(Plan(named, epochs)))

    async def put(self, name: str, data: bytes) -> None:
        entry = await self.user.read(name)
        await self.user.replace(name, data, None if entry is None else entry.version)
        await self.pass_s(0.1)

    async def pass_s(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def entry(self) -> Member | None:
        """Return the agent's entry."""
        data = (await self.user.members(MEMBERS)).get(ME.nonce)
        return None if data is None else parse_member(ME.nonce, data)

    async def holdings(self) -> Mapping[int, HeldShard]:
        entry = await self.entry()
        assert entry is not None
        return entry.held_shards


def mine(epoch: int, *, database: str = "", leaving: bool = False) -> Assignment:
    return Assignment(ME.name, ME.nonce, epoch, database, leaving)


def other(epoch: int) -> Assignment:
    return Assignment("two", "nonce-two", epoch, "")


def run_story(story: Callable[[AgentSite], Coroutine[Any, Any, None]], *, start: bool = True) -> None:
    async def play() -> None:
        site = AgentSite()
        if start:
            await site.start()
        await story(site)

    run_virtual(play, until_s=600)
