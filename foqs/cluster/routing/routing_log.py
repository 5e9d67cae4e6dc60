"""What changed between the last maps of a cluster.

Holds `RoutingLog`. Always true: a change leads from the version that it is asked for
to the map that was added last, exactly; of what changed more than once, or went
and came back, only what it is now is told. Only what changed is kept, not the
maps. Loads are no part of a map. Pure; knows nothing of how maps are read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from foqs.cluster.routing.port import HostView, RoutingChange, RoutingTable, ShardView

_K = TypeVar("_K", str, int)

STEPS_MAX: Final = 256
"""Changes are remembered for so many maps: a shard's move makes three or four, so this is a rolling restart of hosts with
dozens of shards, and more than a client misses that asks every few seconds."""


@dataclass(slots=True, frozen=True)
class _Step:
    """From this version to the next: nonces and numbers of what is not as it was."""

    version: int
    hosts: frozenset[str]
    shards: frozenset[int]


class RoutingLog:
    """Empty at first."""

    def __init__(self) -> None:
        self._steps: deque[_Step] = deque(maxlen=STEPS_MAX)
        self._version: int | None = None
        self._hosts: dict[str, HostView] = {}
        self._shards: dict[int, ShardView] = {}

    def add(self, routing: RoutingTable) -> None:
        """The map is this from now on."""
        hosts = {host.nonce: _without_load(host) for host in routing.hosts}
        shards = {shard.shard: shard for shard in routing.shards}
        if self._version is not None and routing.version != self._version:
            self._steps.append(
                _Step(self._version, _changed_keys(self._hosts, hosts), _changed_keys(self._shards, shards))
            )
        self._version, self._hosts, self._shards = routing.version, hosts, shards

    def changes_since(self, version: int) -> RoutingChange | None:
        """What changed; None where that version is not remembered."""
        if self._version is None:
            return None
        hosts: set[str] = set()
        shards: set[int] = set()
        if version != self._version:
            for step in reversed(self._steps):
                hosts |= step.hosts
                shards |= step.shards
                if step.version == version:
                    break
            else:
                return None
        return RoutingChange(
            version,
            self._version,
            [host for nonce, host in self._hosts.items() if nonce in hosts],
            [self._shards[number] for number in sorted(shards) if number in self._shards],
            sorted(hosts - self._hosts.keys()),
            sorted(shards - self._shards.keys()),
        )


def _without_load(host: HostView) -> HostView:
    return host if host.load is None else replace(host, load=None)


def _changed_keys(before: Mapping[_K, object], after: Mapping[_K, object]) -> frozenset[_K]:
    """Keys whose values are not the same in both."""
    return frozenset(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
