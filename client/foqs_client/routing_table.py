"""The routing table: which host to call, as a client last read it.

Holds `TierRoutes`, and how a call is split by it. Always true: a table never changes.
If it is old, a host replies `NotOwner`. Knows nothing of connections and of Thrift.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias, TypeVar

from foqs_client.errors import FoqsError, UnknownOutcome
from foqs_client.types import Routing
from foqs_contract.key_slots import KEY_SLOT_COUNT, group_slot_of, key_slot_of

E = TypeVar("E")
R = TypeVar("R")

Address: TypeAlias = tuple[str, int]
"""(host, port)."""


class TierRoutes:
    """The routing table of one tier.

    Args:
        routing: the routing as a host sent it. If it names its tier, other tiers are left out.

    Attributes:
        hosts: the hosts to call. Hosts that are stopping are in it only if there are no others.
        has_other_shards: some shard has no owner, or one that is not in `hosts`.
    """

    def __init__(self, routing: Routing) -> None:
        tier = routing.tier
        hosts = [host for host in routing.hosts if tier is None or host.tier == tier]
        shards = [shard for shard in routing.shards if tier is None or shard.tier == tier]
        self.version: Final = routing.version
        self.hosts: Final[Sequence[Address]] = [host.address for host in hosts if not host.leaving] or [
            host.address for host in hosts
        ]
        self.has_other_shards: Final = any(shard.owner not in self.hosts for shard in shards)
        self._owners = {shard.shard: shard.owner for shard in shards if shard.owner is not None}
        self._key_slot_owners: list[Address | None] = [None] * KEY_SLOT_COUNT
        self._key_slots_by_host: dict[Address, list[int]] = {}
        for shard in shards:
            slots = [slot for slot in shard.key_slots if slot < KEY_SLOT_COUNT]
            if shard.owner is None or not slots:
                continue
            for slot in slots:
                self._key_slot_owners[slot] = shard.owner
            # A draining shard accepts items with a key, but must become empty.
            if shard.state == "owned" and not shard.draining:
                self._key_slots_by_host.setdefault(shard.owner, []).extend(slots)

    def owner(self, id: str) -> Address | None:
        """Return the host of an item's shard; None if it is not known."""
        shard, _, _ = id.partition("-")
        return self._owners.get(int(shard)) if shard.isascii() and shard.isdigit() else None

    def key_owner(self, key: str) -> Address | None:
        """Return the host of a key's slot; None if it is not known."""
        # A key that is not UTF-8 is refused when the call is encoded.
        return self._key_slot_owners[key_slot_of(key.encode(errors="surrogatepass"))]

    def group_owner(self, namespace: str, group: str) -> Address | None:
        """Return the host of a group's slot; None if it is not known."""
        slot = group_slot_of(namespace.encode(errors="surrogatepass"), group.encode(errors="surrogatepass"))
        return self._key_slot_owners[slot]

    def key_slots_of(self, host: Address) -> Sequence[int]:
        """Return the slots of a host for new keys."""
        return self._key_slots_by_host.get(host, ())


async def call_by_host(
    entries: Sequence[E],
    host_of: Callable[[E], Address | None],
    call: Callable[[Address | None, Sequence[E]], Awaitable[list[R]]],
    failure_result: Callable[[FoqsError], R],
) -> list[R]:
    """Call each host with its entries, in parallel. Return a result for each entry, in order.

    Args:
        host_of: returns the host of an entry; None: any host.
        call: calls a host with some entries; returns a result for each, in order.
        failure_result: makes the result of an entry whose call failed.

    Raises:
        FoqsError: every call failed, and the first error is true of all entries.
    """
    groups: dict[Address | None, list[int]] = {}
    for place, entry in enumerate(entries):
        groups.setdefault(host_of(entry), []).append(place)
    if len(groups) == 1:
        return await call(next(iter(groups)), entries)
    parts = [[entries[place] for place in places] for places in groups.values()]
    replies = await asyncio.gather(*map(call, groups, parts), return_exceptions=True)
    failures = [reply for reply in replies if isinstance(reply, BaseException)]
    unknown = sum(isinstance(failure, UnknownOutcome) for failure in failures)
    for failure in failures:
        # If only some entries may have been written, each gets the error of its own call.
        if not isinstance(failure, FoqsError) or (len(failures) == len(replies) and unknown in (0, len(failures))):
            raise failure
    results: dict[int, R] = {}
    for places, reply in zip(groups.values(), replies, strict=True):
        found = [failure_result(reply)] * len(places) if isinstance(reply, FoqsError) else reply
        results.update(zip(places, found, strict=False))  # type: ignore[arg-type]
    if len(results) < len(entries):
        return []  # a host left out entries; a reply of a single host is treated in the same way
    return [results[place] for place in range(len(entries))]
