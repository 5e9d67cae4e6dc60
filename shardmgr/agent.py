"""The agent of a host: announces it, follows the plan, and lets it serve only while its session lives.

Always true: the holder has a shard only between `assigned` and `dropped`, and has
none while the host is cut off; an epoch that was given to a keeper is given to no
other keeper; one write of the host's entry is under way at a time. What the
holder does with a shard it learns from the keepers, whose `Coordinator` it is.
Knows neither queues nor who plans, and how.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from shardmgr.documents import MEMBERS, render_member
from shardmgr.model import Assignment, Holding, Layout, Malformed, Member, Plan, View
from shardmgr.ownership import Ownership
from shardmgr.port import CoordinatorFailed, Holder
from shardmgr.reading import read_cluster
from shardmgr.registry import Link, Registry, RegistryError
from shardmgr.session import Standing, Turn, advance

log = logging.getLogger(__name__)


@dataclass(slots=True, frozen=True)
class AgentPace:
    """How an agent uses its time. Milliseconds.

    Attributes:
        stop_margin_ms: so long before its session can be over the host serves nothing any more.
        tick_ms: it looks again after this time, though nothing seems to have changed, and tells its load.
        pause_ms: it looks not sooner than this after it has looked: what changes meanwhile is one change.
        retry_ms_max: the longest pause after the registry has failed; it begins with `pause_ms` and doubles.
    """

    stop_margin_ms: int = 500
    tick_ms: int = 5_000
    pause_ms: int = 10
    retry_ms_max: int = 1_000


@dataclass(slots=True)
class _Held:
    """A shard that is assigned to this host.

    Attributes:
        epoch, database: of the assignment.
        state: what the holder does with it, a value of `Ownership`.
        given: the holder was told of it.
        releasing: the holder was asked to release it.
        want: the epoch above which its keeper needs one; None when it needs none.
        answer: what the keeper waits for.
    """

    epoch: int
    database: str
    state: str = Ownership.FREE.value
    given: bool = False
    releasing: bool = False
    want: int | None = None
    answer: asyncio.Future[None] | None = None


class Agent:
    """One host's; see `port.Coordinator` for what keepers ask of it.

    Args:
        registry: open when it runs; it may have other users.
        boot_ms: the boot-time clock.
        rng: spreads the pauses after failures.
        load: what the host does now, relative to others.
    """

    def __init__(
        self,
        registry: Registry,
        pace: AgentPace,
        boot_ms: Callable[[], int],
        rng: Random,
        load: Callable[[], float],
    ) -> None:
        self.view: View | None = None
        """The cluster as it was read last."""
        self.plan_version: int | None = None
        """That of the plan in `view`, by the registry; None where there is no plan."""
        self.trouble: str | None = None
        """Why the plan cannot be read, or the host not be announced; None while all is well."""
        self._registry = registry
        self._pace = pace
        self._boot_ms = boot_ms
        self._rng = rng
        self._load = load
        self._member: Member
        self._holder: Holder
        self._view_changed: Callable[[], None]
        self._standing = Standing.CUT_OFF
        self._session = 0
        self._held: dict[int, _Held] = {}
        self._burned: dict[int, int] = {}
        """By shard, the last epoch that an earlier keeper was given."""
        self._announced: tuple[int, bytes] | None = None
        """The session and the entry that stands in it."""
        self._changed = asyncio.Event()
        self._left = asyncio.Event()

    @property
    def standing(self) -> Standing:
        """How the host stands with its cluster."""
        return self._standing

    @property
    def serve_left_ms(self) -> int:
        """How long it would go on serving without another answer; 0 while it serves nothing."""
        if self._standing in (Standing.CUT_OFF, Standing.JOINING):
            return 0
        return max(0, self._serve_until_ms() - self._boot_ms())

    async def run(self, member: Member, holder: Holder, changed: Callable[[], None]) -> None:
        """Follows the plan until cancelled; then the holder has what it had.

        Args:
            member: the host as it announces itself; what it does with shards is filled in here.
            changed: called when `view` has another layout or plan, before the holder is told what follows.
        """
        self._view_changed = changed
        self._member = member
        self._holder = holder
        self._registry.on_change(self._heard)
        watching = asyncio.ensure_future(self._watch())
        watching.add_done_callback(lambda _: self._changed.set())
        failures = 0
        try:
            while True:
                self._changed.clear()
                self._look()
                if self._answers():
                    try:
                        await self._turn()
                        failures, self.trouble = 0, None
                    except (RegistryError, Malformed) as error:
                        failures += 1
                        self._report(str(error))
                await self._wait(failures)
                if watching.done():
                    watching.result()  # without the look at the clock nothing ends serving in time
        finally:
            watching.cancel()

    async def leave(self, deadline: float) -> None:
        """Gives all shards back, to those that the planner finds; returns when that is done, or at the deadline. Needs `run`.

        Args:
            deadline: by the event loop's clock.
        """
        self._member = replace(self._member, leaving=True)
        self._changed.set()
        self._check_left()
        try:
            async with asyncio.timeout_at(deadline):
                await self._left.wait()
        except TimeoutError:
            if self._held:
                log.warning("%d shards were not handed over in time", len(self._held))
            else:
                log.warning("nobody could be told in time that this host leaves")

    def owner_of(self, shard: int) -> Member | None:
        """Who should own it, as it was read last; None where nobody should, or he is gone."""
        assignment = None if self.view is None else self.view.plan.assignments.get(shard)
        if self.view is None or assignment is None:
            return None
        return next((member for member in self.view.members if member.nonce == assignment.nonce), None)

    # ------------------------------------------------------- what keepers ask

    async def issue_epoch(self, shard: int, above: int) -> int:
        """See `port.Coordinator`: that of the assignment, or where it was used up, that of the next one."""
        held = self._held.get(shard)
        if held is None:
            raise CoordinatorFailed(f"shard {shard} is not assigned to this host any more")
        above = max(above, self._burned.get(shard, 0))
        try:
            while held.epoch <= above:
                held.want, held.answer = above, asyncio.get_running_loop().create_future()
                self._changed.set()
                await held.answer
        finally:
            held.want = held.answer = None
        return held.epoch

    def tell(self, shard: int, epoch: int, state: str) -> None:
        """See `port.Coordinator`."""
        held = self._held.get(shard)
        if held is not None and held.given and held.state != state:
            held.state = state
            self._changed.set()

    # ---------------------------------------------------------------- session

    def _heard(self) -> None:
        """The registry says that something may have changed."""
        self._look()
        self._changed.set()

    def _answers(self) -> bool:
        return self._standing is not Standing.CUT_OFF and self._registry.link is Link.CONNECTED

    def _look(self) -> None:
        """Takes in how the session stands, at once."""
        registry = self._registry
        alive = registry.link is not Link.LOST and self._boot_ms() < self._serve_until_ms()
        if self._standing is not Standing.CUT_OFF and not (alive and registry.session == self._session):
            self._advance(Turn.OVER)
        if self._standing is Standing.CUT_OFF and alive and registry.link is Link.CONNECTED:
            self._session = registry.session
            self._advance(Turn.BEGUN)
        if registry.link is Link.SUSPENDED:
            self._advance(Turn.SILENT)

    def _serve_until_ms(self) -> int:
        return self._registry.alive_until_ms - self._pace.stop_margin_ms

    def _advance(self, turn: Turn) -> None:
        before, self._standing = self._standing, advance(self._standing, turn)
        if before is self._standing:
            return
        log.info("this host is %s", self._standing.value)
        if self._standing is Standing.CUT_OFF:
            self._holder.suspended()
            for number in list(self._held):
                self._drop(number)
            self._check_left()
        elif self._standing is Standing.SUSPENDED:
            self._holder.suspended()
        elif self._standing is Standing.SERVING:
            self._holder.resumed()

    async def _watch(self) -> None:
        """Looks at the clock: nobody says that a session may be over, nor that the machine has slept."""
        margin_ms = max(1, self._pace.stop_margin_ms // 2)
        while True:
            left_ms = margin_ms
            if self._standing is not Standing.CUT_OFF:
                left_ms = min(margin_ms, max(1, self._serve_until_ms() - self._boot_ms()))
            await asyncio.sleep(left_ms / 1000)
            self._look()

    async def _wait(self, failures: int) -> None:
        """Until something has changed or it is time to look; after failures only for a time."""
        pace = self._pace
        if failures:
            pause_ms = min(pace.retry_ms_max, pace.pause_ms << min(failures, 16))
            await asyncio.sleep(pause_ms * self._rng.uniform(0.5, 1.0) / 1000)
            return
        await asyncio.sleep(pace.pause_ms / 1000)
        try:
            async with asyncio.timeout(pace.tick_ms / 1000):
                await self._changed.wait()
        except TimeoutError:
            self._member = replace(self._member, load=self._load())

    def _report(self, trouble: str) -> None:
        if self.trouble != trouble:
            log.warning("the plan cannot be followed: %s", trouble)
        self.trouble = trouble

    # ------------------------------------------------------------------- plan

    async def _turn(self) -> None:
        """Announces what has changed, reads, and does what the plan says. Raises `RegistryError`, `Malformed`."""
        session = self._session
        await self._announce()
        reading = await read_cluster(self._registry)
        self._look()
        if self._session != session or not self._answers():
            self._changed.set()
            return
        if all(member.nonce != self._member.nonce for member in reading.members):
            self._announced = None  # somebody has deleted the entry of a session that lives
            self._changed.set()
        layout = reading.layout_to_follow() or Layout()
        self.plan_version = reading.plan_version
        known, self.view = self.view, View(layout, reading.plan, reading.members)
        if known is None or (known.layout, known.plan) != (layout, reading.plan):
            self._view_changed()
        self._follow(layout, reading.plan)
        self._advance(Turn.FOLLOWED)
        self._check_left()

    async def _announce(self) -> None:
        member = replace(
            self._member,
            holdings={number: Holding(held.epoch, held.state) for number, held in self._held.items()},
            wants={number: held.want for number, held in self._held.items() if held.want is not None},
        )
        entry = self._session, render_member(member)
        if entry != self._announced:
            self._announced = None
            await self._registry.announce(MEMBERS, member.nonce, entry[1])
            if entry[0] == self._session:
                self._announced = entry

    def _follow(self, layout: Layout, plan: Plan) -> None:
        mine = {number: each for number, each in plan.assignments.items() if each.nonce == self._member.nonce}
        for number in [number for number in self._held if number not in mine]:
            self._drop(number)
        for number, assignment in sorted(mine.items()):
            self._renew(number, assignment)
            held = self._held.get(number)
            if held is None:
                held = self._held[number] = _Held(assignment.epoch, assignment.database)
                self._changed.set()
            spec = layout.shards.get(number)
            if not held.given and not assignment.leaving and assignment.stands(spec):
                held.given, held.state = True, Ownership.ACQUIRING.value
                self._holder.assigned(number, assignment.database)
            elif held.given and assignment.leaving and not held.releasing:
                held.releasing = True
                self._holder.release(number)

    def _renew(self, number: int, assignment: Assignment) -> None:
        """Gives a keeper that waits for it its next epoch; any other has had an assignment that is over."""
        held = self._held.get(number)
        if held is None or (held.epoch, held.database) == (assignment.epoch, assignment.database):
            return
        if held.answer is not None and held.database == assignment.database:
            held.epoch = assignment.epoch
            self._changed.set()
            if not held.answer.done():
                held.answer.set_result(None)
        else:
            self._drop(number)

    def _drop(self, number: int) -> None:
        held = self._held.pop(number)
        self._changed.set()
        if held.given:
            self._burned[number] = max(held.epoch, self._burned.get(number, 0))
            self._holder.dropped(number)

    def _check_left(self) -> None:
        """Whether a host that leaves has given everything back, and everybody knows."""
        if self._member.leaving and not self._held:
            told = self._announced is not None and self._announced[1] == render_member(self._member)
            if told or self._standing is Standing.CUT_OFF:
                self._left.set()
