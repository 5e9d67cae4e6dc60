"""The status of a shard of this host, for operators and routing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class ShardStatus:
    """`state` is a state of `shardmgr.ownership`; `reason` says why the shard is not served."""

    shard: int
    state: str
    epoch: int
    queued_items: int
    reason: str | None
