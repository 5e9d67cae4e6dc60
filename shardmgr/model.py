"""The model of a cluster: its members, its shards, and which host should own each.

Holds the values that hosts, planner and administrators exchange. Always true of a
parsed value: numbers are in range, names are not empty. Pure; knows neither the
JSON form (`documents`), nor the registry, nor the content of a shard.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

Unknown: TypeAlias = Mapping[str, Any]
"""The fields of a JSON object that this version does not know."""

EPOCH_MAX: Final = (1 << 20) - 1
SHARD_MAX: Final = (1 << 31) - 1
WEIGHT_MAX: Final = 1_000_000
TERM_MAX: Final = EPOCH_MAX


class MalformedDocument(Exception):
    """A document is malformed: the place in it, and the problem there."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}" if path else problem)
        self.path = path
        self.problem = problem


class NewerDocument(MalformedDocument):
    """The format of a document is newer than those that this version reads. It is not damaged."""


@dataclass(slots=True, frozen=True)
class HeldShard:
    """A member's shard: its epoch and its state, a value of `OwnershipState`."""

    epoch: int
    state: str


@dataclass(slots=True, frozen=True)
class Member:
    """One run of a host, as it announces itself while its registry session lives.

    Attributes:
        name: the host's name; the same after a restart. Normally no two members have the same name.
        nonce: a text that identifies the run; no two runs have the same.
        address: the `host:port` at which clients reach it.
        capacity: its part of the work, relative to other members; at least 1.
        load: its load now, relative to other members; for information, not for planning.
        leaving: it hands its shards over and accepts no more.
        held_shards: the epochs and states of its assigned shards, by shard.
        taken_epochs: by shard, an epoch that it found in use: it needs a higher one.
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
    """A shard of the layout.

    Attributes:
        database: the name of its database in the configuration of every host.
        weight: its work, relative to other shards; at least 1.
        region: the region in which hosts are preferred, unless its database has an entry: then it is that of the primary.
            Empty: none.
        draining: it accepts no new items.
        unknown: the fields that a newer version has written; they are kept.
    """

    number: int
    database: str
    tier: str = "default"
    weight: int = 1
    region: str = ""
    draining: bool = False
    unknown: Unknown = field(default_factory=dict, hash=False)


@dataclass(slots=True, frozen=True)
class Layout:
    """The cluster as administrators want it.

    Attributes:
        shards: the shards by number.
        drained: the names of hosts that must own no shard.
        pins: by shard, the name of the host that should own it while that host runs.
        unknown: the fields that a newer version has written; they are kept.
    """

    shards: Mapping[int, ShardSpec] = field(default_factory=dict)
    drained: frozenset[str] = frozenset()
    pins: Mapping[int, str] = field(default_factory=dict)
    unknown: Unknown = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class Assignment:
    """The planned owner of a shard.

    Attributes:
        name, nonce: the name and the nonce of the member.
        epoch: the epoch for the takeover; higher than any issued for the shard before.
        database: the shard's database at the assignment; empty if it is not known any more.
        leaving: the member must hand the shard over.
        term: the term of the database's primary that the member may use; 0 if the database has no entry.
        unknown: the fields that a newer version has written; they are kept while the assignment lasts.
    """

    name: str
    nonce: str
    epoch: int
    database: str
    leaving: bool = False
    term: int = 0
    unknown: Unknown = field(default_factory=dict, hash=False)

    def matches(self, spec: ShardSpec | None) -> bool:
        """Return whether the layout has the shard in the database of this assignment."""
        return spec is not None and spec.database == self.database


@dataclass(slots=True, frozen=True)
class Plan:
    """The planned owners of all shards.

    Attributes:
        assignments: by shard; a shard that no host should own has none.
        epochs: by shard, the last epoch issued, for every shard that ever had one: it outlives the assignment.
        unknown: the fields that a newer version has written; they are kept.
    """

    assignments: Mapping[int, Assignment] = field(default_factory=dict)
    epochs: Mapping[int, int] = field(default_factory=dict)
    unknown: Unknown = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class ClusterView:
    """A cluster as one reader sees it at one time; its parts may be of different moments."""

    layout: Layout
    plan: Plan
    members: Sequence[Member]
