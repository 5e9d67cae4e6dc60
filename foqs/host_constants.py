"""The constants of a host that tests replace.

They are no options, because nothing that a host shows says how to choose them. A test passes shorter times as an
argument.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from foqs.access.authenticator import AuthenticationLimits
from foqs.queue.call_limits import CallConstants
from foqs.rpc.rpc_limits import RpcConstants
from foqs.shard.shard_constants import ShardConstants
from shardmgr.planner import PlannerPace


@dataclass(slots=True, frozen=True)
class HostConstants:
    """The constants of the parts of a host."""

    shard: ShardConstants = field(default_factory=ShardConstants)
    rpc: RpcConstants = field(default_factory=RpcConstants)
    calls: CallConstants = field(default_factory=CallConstants)
    planner: PlannerPace = field(default_factory=PlannerPace)
    authentication: AuthenticationLimits = field(default_factory=AuthenticationLimits)


HOST_CONSTANTS: Final = HostConstants()
"""The constants of every host outside of tests."""
