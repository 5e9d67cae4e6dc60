"""The shards of one host: those it serves, and how each one is doing."""

from __future__ import annotations

from dataclasses import dataclass, field

from foqs.shard.shard import Shard
from foqs.shard.status import ShardStatus


@dataclass(slots=True)
class HostShards:
    """Both change as shards come and go."""

    served: dict[int, Shard] = field(default_factory=dict)
    """By number."""
    statuses: dict[int, ShardStatus] = field(default_factory=dict)
    """Of every shard that this host should serve, by number."""
