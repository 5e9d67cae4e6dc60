"""The changes of administrators to a cluster's layout, and a view of the cluster.

Always true: a change replaces the layout that was read, and is tried again if another
change came first; a change that is already in effect succeeds and writes nothing, so
it can be repeated. Permissions are not checked here. The planner reacts to a change
later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

from foqs_contract.plurals import counted
from shardmgr.cluster_reader import read_cluster, read_layout
from shardmgr.documents import LAYOUT, PLAN, parse_layout, parse_plan, render_layout, render_plan
from shardmgr.model import ClusterView, Layout, MalformedDocument, Member, Plan, ShardSpec
from shardmgr.registry.port import Registry, RegistryConflict, RegistryFailed

SHARDS_MAX: Final = 1_000
"""The most shards of a layout. Its plan fits into one document, even with the longest names."""
DRAINED_HOSTS_MAX: Final = 1_000
"""The most hosts that may be drained at a time: the layout holds their names."""
ATTEMPTS_MAX: Final = 10
"""The maximum number of attempts for one change while others change the layout too."""


class ChangeRefused(Exception):
    """The change cannot be made, and nothing was changed.

    Attributes:
        field: the wrong field of the call.
        problem: what is wrong with it, and what to do.
    """

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


# Each function here also raises RegistryFailed (nothing was changed), RegistryOutcomeUnknown (it may have been changed)
# and MalformedDocument (the stored document is malformed and stays as it is).


async def read_cluster_view(registry: Registry) -> ClusterView:
    """Return the layout, the plan and the members. Raises ChangeRefused if there is no layout."""
    reading = await read_cluster(registry)
    if reading.layout is None:
        raise _layout_missing()
    return ClusterView(reading.layout, reading.plan, reading.members)


async def create_layout(registry: Registry, shards: Sequence[ShardSpec]) -> bool:
    """Create the layout of a new cluster. Return False if there is an equal one already.

    Raises:
        ChangeRefused: there is another layout; there are no shards, too many, or two with the same number.
    """
    if not shards:
        raise ChangeRefused("shards", "a cluster needs at least one shard; give one")
    fresh = Layout({spec.number: spec for spec in shards})
    if len(fresh.shards) < len(shards):
        raise ChangeRefused("shards", "two shards have the same number; give each its own")
    text = _render_checked(fresh)
    try:
        await registry.replace(LAYOUT, text, None)
    except RegistryConflict:
        found = await read_layout(registry)
        if found is None or found[0] != fresh:
            raise ChangeRefused(
                "cluster", "there is already a different layout; change it with foqs shard add and foqs shard remove"
            ) from None
        return False
    return True


async def raise_epochs(registry: Registry, shards: Iterable[int], above: int) -> None:
    """Make every further epoch of these shards higher than `above`. No epoch is lowered.

    This is for a restore of both the databases and the plan: the epochs used since the backup are unknown then.
    Raises RegistryFailed.
    """
    for _ in range(ATTEMPTS_MAX):
        entry = await registry.read(PLAN)
        plan = Plan() if entry is None else parse_plan(entry.data)
        epochs = {**plan.epochs, **{shard: max(above, plan.epochs.get(shard, 0)) for shard in shards}}
        if epochs == plan.epochs:
            return
        try:
            raised = render_plan(replace(plan, epochs=epochs))
            await registry.replace(PLAN, raised, None if entry is None else entry.version)
        except RegistryConflict:
            continue
        return
    raise RegistryFailed("the plan keeps changing; try again")


async def add_shard(registry: Registry, spec: ShardSpec) -> None:
    """Add a shard. Raises `ChangeRefused` if there is another with its number, or if there are too many."""

    def change(layout: Layout) -> Layout:
        found = layout.shards.get(spec.number)
        if found is not None:
            if replace(found, unknown={}) == spec:
                return layout
            raise ChangeRefused("shard", f"there is already another shard {spec.number}; use another number")
        return replace(layout, shards={**layout.shards, spec.number: spec})

    await _change_layout(registry, change)


async def remove_shard(registry: Registry, number: int, *, force: bool = False) -> None:
    """Remove a shard from the layout: its owner hands it back, and no host serves it any more. Its tables stay.

    Args:
        force: remove it although it still accepts new items, which are not delivered then.

    Raises:
        ChangeRefused: there is no such shard; it is not draining.
    """

    def change(layout: Layout) -> Layout:
        if not _shard_spec(layout, number).draining and not force:
            raise ChangeRefused("shard", f"shard {number} still accepts new items; drain it first, or force it")
        shards = {other: spec for other, spec in layout.shards.items() if other != number}
        return replace(layout, shards=shards, pins=_pins_without(layout, number))

    await _change_layout(registry, change)


async def drain_shard(registry: Registry, number: int, *, drain: bool = True) -> None:
    """Stop new items for a shard, or allow them again. Raises `ChangeRefused` if there is no such shard."""

    def change(layout: Layout) -> Layout:
        spec = replace(_shard_spec(layout, number), draining=drain)
        return replace(layout, shards={**layout.shards, number: spec})

    await _change_layout(registry, change)


async def move_shard(registry: Registry, number: int, host: str | None) -> None:
    """Pin a shard to the host of this name, for as long as it runs. None removes the pin.

    Raises:
        ChangeRefused: there is no such shard; no host of that name may own it now.
    """
    members = [] if host is None else _members_named((await read_cluster(registry)).members, host)

    def change(layout: Layout) -> Layout:
        spec = _shard_spec(layout, number)
        if host is None:
            return replace(layout, pins=_pins_without(layout, number))
        if host in layout.drained:
            raise ChangeRefused("host", f"{host} is drained; undrain it first")
        if all(member.tier != spec.tier for member in members):
            raise ChangeRefused("host", f"{host} is not of the shard's tier, {spec.tier}; name a host of that tier")
        if all(member.leaving for member in members):
            raise ChangeRefused("host", f"{host} is stopping; name another host, or wait until it runs again")
        return replace(layout, pins={**layout.pins, number: host})

    await _change_layout(registry, change)


async def drain_host(registry: Registry, name: str, *, force: bool = False) -> None:
    """Drain the host of this name: it hands its shards over and gets none until undrained, even after a restart.

    Args:
        force: drain it although no host of that name runs, or no other host may own its shards.

    Raises:
        ChangeRefused: no host of that name runs; no other host of its tier may own shards.
    """
    members = [] if force else (await read_cluster(registry)).members
    leaving = [] if force else _members_named(members, name)

    def change(layout: Layout) -> Layout:
        after = replace(layout, drained=layout.drained | {name})
        if after != layout:
            for member in leaving:
                _check_tier_keeps_owners(after, members, member)
        return after

    await _change_layout(registry, change)


async def undrain_host(registry: Registry, name: str) -> None:
    """Let a host own shards again. Raises `ChangeRefused` if it is not drained and no host of that name runs."""
    reading = await read_cluster(registry)
    if reading.layout is None or name not in reading.layout.drained:
        _members_named(reading.members, name)
    await _change_layout(registry, lambda layout: replace(layout, drained=layout.drained - {name}))


async def _change_layout(registry: Registry, change: Callable[[Layout], Layout]) -> None:
    """Replace the layout with the result of `change`, which is called again if another change came first.

    Raises ChangeRefused, also if there is no layout; RegistryFailed if others change it again and again.
    """
    for _ in range(ATTEMPTS_MAX):
        found = await read_layout(registry)
        if found is None:
            raise _layout_missing()
        before, version = found
        after = change(before)
        if after == before:
            return
        try:
            await registry.replace(LAYOUT, _render_checked(after), version)
        except RegistryConflict:
            continue
        return
    raise RegistryFailed(f"others changed the layout {ATTEMPTS_MAX} times in a row; nothing was changed, try again")


def _render_checked(layout: Layout) -> bytes:
    """Return a layout as bytes. Raises ChangeRefused if it is beyond a limit."""
    if len(layout.shards) > SHARDS_MAX:
        raise ChangeRefused(
            "shard", f"a cluster has at most {SHARDS_MAX:,} shards; add fewer, or remove drained ones first"
        )
    if len(layout.drained) > DRAINED_HOSTS_MAX:
        raise ChangeRefused(
            "host", f"at most {DRAINED_HOSTS_MAX:,} hosts can be drained; undrain those that will not run again"
        )
    text = render_layout(layout)
    try:
        parse_layout(text)
    except MalformedDocument as error:
        raise ChangeRefused(error.path, error.problem) from None
    return text


def _shard_spec(layout: Layout, number: int) -> ShardSpec:
    try:
        return layout.shards[number]
    except KeyError:
        raise ChangeRefused("shard", f"there is no shard {number}; foqs shard list shows the shards") from None


def _members_named(members: Sequence[Member], name: str) -> list[Member]:
    found = [member for member in members if member.name == name]
    if not found:
        running = ", ".join(sorted({member.name for member in members})[:10]) or "none"
        raise ChangeRefused("host", f"no host named {name} is running; running are: {running}")
    return found


def _check_tier_keeps_owners(layout: Layout, members: Sequence[Member], member: Member) -> None:
    """Raise `ChangeRefused` if no host could own the shards of the member's tier."""
    others = (other for other in members if other.tier == member.tier and other.name not in layout.drained)
    count = sum(spec.tier == member.tier for spec in layout.shards.values())
    if count and all(other.leaving for other in others):
        raise ChangeRefused(
            "host",
            f"{member.name} is the last host that may own shards of tier {member.tier}: no host would serve "
            f"{counted(count, 'shard')}; start or undrain another host first",
        )


def _pins_without(layout: Layout, number: int) -> dict[int, str]:
    return {other: host for other, host in layout.pins.items() if other != number}


def _layout_missing() -> ChangeRefused:
    return ChangeRefused("cluster", "there is no layout yet; create the cluster first with foqs cluster init")
