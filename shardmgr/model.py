"""What is known of a cluster: its members, its shards, who should own which.

Holds the values that hosts, planner and administrators exchange. Always true of
a value that was read: numbers are in range, names are not empty. Pure; knows
neither their form in JSON (`documents`), nor where documents are kept, nor what
a shard holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

EPOCH_MAX: Final = (1 << 20) - 1
SHARD_MAX: Final = (1 << 31) - 1
WEIGHT_MAX: Final = 1_000_000


class MalformedDocument(Exception):
    """A text is not what it should be: where in it, and what is wrong there."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}" if path else problem)
        self.path = path
        self.problem = problem


@dataclass(slots=True, frozen=True)
class HeldShard:
    """What a member does with a shard: which epoch it has, and how far it is (a value of `Ownership`)."""

    epoch: int
    state: str


@dataclass(slots=True, frozen=True)
class Member:
    """One incarnation of a host, as it announces itself for as long as its session lives.

    Attributes:
        name: of the host; stays over restarts. Two members never have the same name at rest.
        nonce: of the incarnation; no two share one.
        address: where clients reach it, `host:port`.
        capacity: how much it can take, relative to other members; at least 1.
        load: what it does now, relative to other members; told, not planned by.
        leaving: it gives its shards back and takes no more.
        holdings: by shard, what it does with those that it was assigned.
        wants: by shard, the epoch that it found taken: it needs a higher one.
    """

    name: str
    nonce: str
    address: str
    tier: str = "default"
    region: str = ""
    capacity: int = 1
    load: float = 0.0
    leaving: bool = False
    held_shards: Mapping[int, HeldShard] = field(default_factory=dict)
    taken_epochs: Mapping[int, int] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class ShardSpec:
    """A shard as administrators know it.

    Attributes:
        database: the name under which every host's own configuration holds its address and credentials.
        weight: the work it makes, relative to other shards; at least 1.
        region: of its primary; hosts of this region are preferred. Empty: none.
        draining: takes no new items.
    """

    number: int
    database: str
    tier: str = "default"
    weight: int = 1
    region: str = ""
    draining: bool = False


@dataclass(slots=True, frozen=True)
class Layout:
    """What administrators want.

    Attributes:
        shards: by number.
        drained: names of hosts that shall own nothing.
        pins: by shard, the name of the host that shall own it while it is there.
    """

    shards: Mapping[int, ShardSpec] = field(default_factory=dict)
    drained: frozenset[str] = frozenset()
    pins: Mapping[int, str] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class Assignment:
    """Who should own a shard.

    Attributes:
        name, nonce: of the member.
        epoch: for the takeover; higher than any that was issued for the shard before.
        database: that of the shard when it was assigned; empty where nobody knows it any more.
        leaving: the member shall drain the shard and give it back.
    """

    name: str
    nonce: str
    epoch: int
    database: str
    leaving: bool = False

    def matches(self, spec: ShardSpec | None) -> bool:
        """The shard, as administrators know it now, is there and in the database that it was assigned in."""
        return spec is not None and spec.database == self.database


@dataclass(slots=True, frozen=True)
class Plan:
    """Who should own what.

    Attributes:
        assignments: by shard; a shard that nobody should own has none.
        epochs: by shard, the last epoch issued, for every shard that ever had one: it outlives the assignment.
    """

    assignments: Mapping[int, Assignment] = field(default_factory=dict)
    epochs: Mapping[int, int] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class ClusterView:
    """A cluster as one reader sees it at one time; its parts may be of different moments."""

    layout: Layout
    plan: Plan
    members: Sequence[Member]
