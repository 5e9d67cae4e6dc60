"""The shards of one host: those it serves, and how each one is doing."""

from __future__ import annotations

from dataclasses import dataclass, field

from foqs.shard.shard import OwnedShard


@dataclass(slots=True, frozen=True)
class ShardStatus:
    """The status of a shard, for operators and routing.

    `state` is a state of `shardmgr.ownership`; `reason` says why the shard is not served.
    """

    shard: int
    state: str
    epoch: int
    queued_items: int
    reason: str | None


@dataclass(slots=True)
class HostShards:
    """Two maps by shard number, which change as shards are acquired and lost."""

    served: dict[int, OwnedShard] = field(default_factory=dict)
    """The shards that this host serves."""
    statuses: dict[int, ShardStatus] = field(default_factory=dict)
    """The status of each shard that this host should serve."""
