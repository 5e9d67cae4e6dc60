"""Which host to call: the map of a cluster as a client last read it.

Holds `Routes`, and how a call is spread by it. Always true: a map never changes;
it may be old, and then a host answers `NotOwner`. Knows nothing of connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias, TypeVar
from zlib import crc32

from foqs_client import conversion
from foqs_client.errors import FoqsError, UnknownOutcome
from foqs_client.types import Host, Routing

E = TypeVar("E")
R = TypeVar("R")

Address: TypeAlias = tuple[str, int]
"""Where a host is reached: host and port."""

KEY_SLOT_COUNT: Final = 1_024
"""The slots of a tier: what the contract's keys hash to, or name."""
_HEX: Final = frozenset("0123456789abcdef")
_SLOT_PREFIX_CHARACTERS: Final = 4
"""Characters of a key that name its slot: `~` and three digits."""


class RoutingTable:
    """Of one tier.

    Args:
        routing: what a host said; with hosts of one tier only where it names its own.

    Attributes:
        hosts: those that can be asked, in the map's order; those that are stopping only when there are no others.
    """

    def __init__(self, routing: Routing) -> None:
        tier = routing.tier
        hosts = [host for host in routing.hosts if tier is None or host.tier == tier]
        shards = [shard for shard in routing.shards if tier is None or shard.tier == tier]
        self.version: Final = routing.version
        self.hosts: Final[Sequence[Address]] = [host.address for host in hosts if not host.leaving] or [
            host.address for host in hosts
        ]
        self._owners = {shard.shard: shard.owner for shard in shards if shard.owner is not None}
        self._key_slot_owners: list[Address | None] = [None] * KEY_SLOT_COUNT
        self._key_slots_by_host: dict[Address, list[int]] = {}
        for shard in shards:
            slots = [slot for slot in shard.key_slots if slot < KEY_SLOT_COUNT]
            if shard.owner is None or not slots:
                continue
            for slot in slots:
                self._key_slot_owners[slot] = shard.owner
            # A shard that takes no new items would refuse none with a key, but is to become empty.
            if shard.state == "owned" and not shard.draining:
                self._key_slots_by_host.setdefault(shard.owner, []).extend(slots)

    def owner(self, id: str) -> Address | None:
        """The host of an item's shard; None where it is not known."""
        shard, _, _ = id.partition("-")
        return self._owners.get(int(shard)) if shard.isascii() and shard.isdigit() else None

    def key_owner(self, key: str) -> Address | None:
        """The host of a key's slot; None where it is not known."""
        return self._key_slot_owners[key_slot_of(key)]

    def key_slots_of(self, host: Address) -> Sequence[int]:
        """The slots whose keys a host takes."""
        return self._key_slots_by_host.get(host, ())


def key_slot_of(key: str) -> int:
    """The slot of a key: named by the key itself, else by its checksum."""
    head = key[:_SLOT_PREFIX_CHARACTERS]
    if len(head) == _SLOT_PREFIX_CHARACTERS and head[0] == "~" and _HEX.issuperset(head[1:]):
        slot = int(head[1:], 16)
        if slot < KEY_SLOT_COUNT:
            return slot
    return crc32(key.encode()) % KEY_SLOT_COUNT


def apply_routing_change(before: Routing | None, reply: Any) -> Routing | None:
    """The map as a reply of getRouting makes it; None where that tells of a change to another map."""
    if reply.hosts is None:
        return before  # a host that knows no changes, and has nothing new
    if reply.since is None:
        return conversion.routing(reply)
    if before is None or reply.since != before.version:
        return None
    hosts = {host.nonce: host for host in before.hosts}
    shards = {shard.shard: shard for shard in before.shards}
    for nonce in reply.removed_hosts or ():
        hosts.pop(nonce, None)
    for number in reply.removed_shards or ():
        shards.pop(number, None)
    hosts.update((host.nonce, host) for host in map(conversion.host, reply.hosts))
    shards.update((shard.shard, shard) for shard in map(conversion.shard, reply.shards or ()))
    return Routing(
        version=reply.version,
        hosts=_with_loads(sorted(hosts.values(), key=_by_name), reply.loads),
        shards=[shards[number] for number in sorted(shards)],
        tier=reply.tier,
    )


def _with_loads(hosts: list[Host], loads: list[float] | None) -> list[Host]:
    """With these loads, of hosts by nonce."""
    if loads is None or len(loads) != len(hosts):
        return hosts
    known = dict(zip(sorted(host.nonce or "" for host in hosts), loads, strict=True))
    return [replace(host, load=known[host.nonce or ""]) for host in hosts]


def _by_name(host: Host) -> tuple[str, str]:
    return host.name or "", host.nonce or ""


async def call_by_host(
    entries: Sequence[E],
    host_of: Callable[[E], Address | None],
    call: Callable[[Address | None, Sequence[E]], Awaitable[list[R]]],
    failure_result: Callable[[FoqsError], R],
) -> list[R]:
    """Asks each host for its entries, at the same time; a result for each entry, in order.

    Args:
        host_of: the host of an entry; None: any will do.
        failure_result: the result of an entry whose host did not answer.

    Raises:
        FoqsError: no host answered; of the first of them, where that is true of all entries.
    """
    groups: dict[Address | None, list[int]] = {}
    for place, entry in enumerate(entries):
        groups.setdefault(host_of(entry), []).append(place)
    if len(groups) == 1:
        return await call(next(iter(groups)), entries)
    parts = [[entries[place] for place in places] for places in groups.values()]
    answers = await asyncio.gather(*map(call, groups, parts), return_exceptions=True)
    failures = [answer for answer in answers if isinstance(answer, BaseException)]
    unknown = sum(isinstance(failure, UnknownOutcome) for failure in failures)
    for failure in failures:
        # Where some may be written and others are not, each is told what holds for it.
        if not isinstance(failure, FoqsError) or (len(failures) == len(answers) and unknown in (0, len(failures))):
            raise failure
    results: dict[int, R] = {}
    for places, answer in zip(groups.values(), answers, strict=True):
        found = [failure_result(answer)] * len(places) if isinstance(answer, FoqsError) else answer
        results.update(zip(places, found, strict=False))  # type: ignore[arg-type]
    if len(results) < len(entries):
        return []  # a host did not name every entry: as where it is the only one
    return [results[place] for place in range(len(entries))]
