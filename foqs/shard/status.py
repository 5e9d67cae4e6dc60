"""How a shard of this host is doing, for people and routing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class ShardStatus:
    """`state` is a state of `shardmgr.ownership`; `reason` says why it is not served, when it is not."""

    shard: int
    state: str
    epoch: int
    queued_items: int
    reason: str | None
