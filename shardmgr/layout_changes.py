"""What administrators do to a cluster: changes of its layout, and a look at all of it.

Always true: a change is one replacement of the layout that was read, made again
when another came first; a change that is in effect already is a success and
writes nothing, so repeating one is harmless. Who may do this is not asked here.
What a change leads to is the planner's business, and takes its time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

from shardmgr.cluster_reader import read_cluster, read_layout
from shardmgr.documents import LAYOUT, PLAN, parse_layout, parse_plan, render_layout, render_plan
from shardmgr.model import ClusterView, Layout, MalformedDocument, Member, Plan, ShardSpec
from shardmgr.registry.port import Registry, RegistryConflict, RegistryFailed

SHARDS_MAX: Final = 1_000
"""In a layout; its plan stays below what a registry takes, even with the longest names."""
DRAINED_HOSTS_MAX: Final = 1_000
"""Hosts."""
_ATTEMPTS_MAX: Final = 10
"""Of one change, while others change the layout too."""


class ChangeRefused(Exception):
    """What was asked for cannot be done; nothing was changed.

    Attributes:
        field: of the call, that is wrong.
        problem: what is wrong with it, and what to do.
    """

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


# Every function here raises, beside `Refused`: RegistryFailed, nothing was changed; RegistryOutcomeUnknown, perhaps it was;
# Malformed, what is there cannot be understood, and is left as it is.


async def read_cluster_view(registry: Registry) -> ClusterView:
    """Layout, plan and members as they are now."""
    reading = await read_cluster(registry)
    if reading.layout is None:
        raise _layout_missing()
    return ClusterView(reading.layout, reading.plan, reading.members)


async def create_layout(registry: Registry, shards: Sequence[ShardSpec]) -> bool:
    """Makes the layout of a new cluster. False where there is an equal one already.

    Raises:
        Refused: there is another layout; there are no shards, too many, or two of one number.
    """
    if not shards:
        raise ChangeRefused("shards", "a cluster needs at least one shard")
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
                "cluster", "there is a layout already, and it is another; add and remove shards"
            ) from None
        return False
    return True


async def raise_epochs(registry: Registry, shards: Iterable[int], above: int) -> None:
    """From now on every epoch that is issued for these shards is higher than `above`. None is ever lowered.

    For shards whose databases and whose plan were both put back to an earlier state: nothing else knows then which
    epochs have served since.
    """
    for _ in range(_ATTEMPTS_MAX):
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
    raise RegistryFailed("the plan changes all the time; try again")


async def add_shard(registry: Registry, spec: ShardSpec) -> None:
    """Adds a shard. Raises `Refused` when there is another of its number, or one too many."""

    def change(layout: Layout) -> Layout:
        if layout.shards.get(spec.number, spec) != spec:
            raise ChangeRefused("shard", f"there is another shard {spec.number} already; use another number")
        return replace(layout, shards={**layout.shards, spec.number: spec})

    await _change_layout(registry, change)


async def remove_shard(registry: Registry, number: int, *, force: bool = False) -> None:
    """Takes a shard out of the layout: its owner gives it back, and nobody serves it any more. Its tables stay.

    Args:
        force: though it still takes new items, which nobody will see then.

    Raises:
        Refused: there is no such shard; it is not draining.
    """

    def change(layout: Layout) -> Layout:
        if not _shard_spec(layout, number).draining and not force:
            raise ChangeRefused("shard", f"shard {number} still takes new items; drain it first, or force it")
        shards = {other: spec for other, spec in layout.shards.items() if other != number}
        return replace(layout, shards=shards, pins=_pins_without(layout, number))

    await _change_layout(registry, change)


async def drain_shard(registry: Registry, number: int, *, drain: bool = True) -> None:
    """Has a shard take no new items, or take them again. Raises `Refused` when there is no such shard."""

    def change(layout: Layout) -> Layout:
        spec = replace(_shard_spec(layout, number), draining=drain)
        return replace(layout, shards={**layout.shards, number: spec})

    await _change_layout(registry, change)


async def move_shard(registry: Registry, number: int, host: str | None) -> None:
    """Pins a shard to a host, by name, for as long as that is there; None: to nobody any more.

    Raises:
        Refused: there is no such shard; no host of that name may have it now.
    """
    members = [] if host is None else _members_named((await read_cluster(registry)).members, host)

    def change(layout: Layout) -> Layout:
        spec = _shard_spec(layout, number)
        if host is None:
            return replace(layout, pins=_pins_without(layout, number))
        if host in layout.drained:
            raise ChangeRefused("host", f"{host} is drained; undrain it first")
        if all(member.tier != spec.tier for member in members):
            raise ChangeRefused("host", f"{host} is not of the shard's tier, {spec.tier}; name one that is")
        if all(member.leaving for member in members):
            raise ChangeRefused("host", f"{host} is stopping; name another, or wait until it is back")
        return replace(layout, pins={**layout.pins, number: host})

    await _change_layout(registry, change)


async def drain_host(registry: Registry, name: str, *, force: bool = False) -> None:
    """Has a host, by name, give all its shards back and get none, over its restarts too, until it is undrained.

    Args:
        force: though no host of that name is there now, or no other could have its shards.

    Raises:
        Refused: no host of that name is there; no other of its tier may own shards.
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
    """Lets a host have shards again. Raises `Refused` when neither it is drained nor one of that name is there."""
    reading = await read_cluster(registry)
    if reading.layout is None or name not in reading.layout.drained:
        _members_named(reading.members, name)
    await _change_layout(registry, lambda layout: replace(layout, drained=layout.drained - {name}))


async def _change_layout(registry: Registry, change: Callable[[Layout], Layout]) -> None:
    """Replaces the layout by what `change` makes of it; that may be called again, on a newer one."""
    for _ in range(_ATTEMPTS_MAX):
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
    raise RegistryFailed(
        f"the layout was changed by others {_ATTEMPTS_MAX} times in a row; nothing was changed, try again"
    )


def _render_checked(layout: Layout) -> bytes:
    """The layout's text, within all limits."""
    if len(layout.shards) > SHARDS_MAX:
        raise ChangeRefused(
            "shard", f"a cluster has at most {SHARDS_MAX:,} shards; give hosts and shards more to do instead"
        )
    if len(layout.drained) > DRAINED_HOSTS_MAX:
        raise ChangeRefused(
            "host", f"at most {DRAINED_HOSTS_MAX:,} hosts can be drained; undrain those that will not come back"
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
        raise ChangeRefused("shard", f"there is no shard {number}; list the shards to see what there is") from None


def _members_named(members: Sequence[Member], name: str) -> list[Member]:
    found = [member for member in members if member.name == name]
    if not found:
        there = ", ".join(sorted({member.name for member in members})[:10]) or "none"
        raise ChangeRefused("host", f"no host named {name} is there; there are: {there}")
    return found


def _check_tier_keeps_owners(layout: Layout, members: Sequence[Member], member: Member) -> None:
    """Raises `Refused` where shards of the member's tier would be left to nobody."""
    others = (other for other in members if other.tier == member.tier and other.name not in layout.drained)
    count = sum(spec.tier == member.tier for spec in layout.shards.values())
    if count and all(other.leaving for other in others):
        raise ChangeRefused(
            "host",
            f"{member.name} is the last host that may own the {count} shards of tier {member.tier}: nobody would serve "
            "them; start or undrain another first",
        )


def _pins_without(layout: Layout, number: int) -> dict[int, str]:
    return {other: host for other, host in layout.pins.items() if other != number}


def _layout_missing() -> ChangeRefused:
    return ChangeRefused("cluster", "there is no layout yet; initialise the cluster first")
