"""The changes between the latest routing tables of a cluster.

Holds `RoutingLog`. Always true: a change leads exactly from the requested version
to the latest table; a host or shard that changed several times appears once, as it
is now. Only the changes are kept, not the tables. Loads do not count as changes.
Pure; knows nothing of how tables are read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from foqs.routing.port import HostView, RoutingChange, RoutingTable, ShardView

_K = TypeVar("_K", str, int)

STEPS_MAX: Final = 256
"""How many tables back changes are remembered. A shard's move makes three or four tables, so this covers a rolling restart
of hosts with dozens of shards. A client that asks every few seconds misses far fewer."""


@dataclass(slots=True, frozen=True)
class _Step:
    """The nonces of hosts and the numbers of shards that changed from `version` to the next."""

    version: int
    hosts: frozenset[str]
    shards: frozenset[int]


class RoutingLog:
    """A bounded log of changes; empty at first."""

    def __init__(self) -> None:
        self._steps: deque[_Step] = deque(maxlen=STEPS_MAX)
        self._version: int | None = None
        self._hosts: dict[str, HostView] = {}
        self._shards: dict[int, ShardView] = {}

    def add(self, routing: RoutingTable) -> None:
        """Add the latest table."""
        hosts = {host.nonce: _without_load(host) for host in routing.hosts}
        shards = {shard.shard: shard for shard in routing.shards}
        if self._version is not None and routing.version != self._version:
            self._steps.append(
                _Step(self._version, _changed_keys(self._hosts, hosts), _changed_keys(self._shards, shards))
            )
        self._version, self._hosts, self._shards = routing.version, hosts, shards

    def changes_since(self, version: int) -> RoutingChange | None:
        """Return what changed since a version; None if the version is not remembered."""
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
    """Return the keys whose values differ."""
    return frozenset(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
