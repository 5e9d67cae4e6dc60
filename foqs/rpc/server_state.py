"""The state that all connections of a host share: limits, memory, counts, and the replies of one turn of the loop.

Holds the open connections and counts the calls in flight. Always true: the limits of
`RpcLimits` hold at any moment; the only clock is the loop's. Knows nothing of bytes,
nor of what a call does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Generic, TypeAlias, TypeVar

from foqs.access.authenticator import Authenticator
from foqs.core.limits.waiting_calls import WaitingCalls
from foqs.rpc.audit import Audit
from foqs.rpc.frames import ByteBudget
from foqs.rpc.messages import DecodeLimits, Decoder, call_head
from foqs.rpc.methods import RpcService
from foqs.rpc.peer_log import PeerLog
from foqs.rpc.rpc_limits import RpcLimits
from foqs.runtime.peer_budget import PeerBudget
from foqs.runtime.unwritten_replies import ReplyWriter, UnwrittenReplies
from foqs_contract.message_heads import CALL, head_prefix

OnCallReplied: TypeAlias = Callable[[str, str, float], None]
"""Called for each answered call with (method, OK or the error's code, seconds)."""

SETTLING_PART: Final = 10
"""One part in this many of the calls in flight is for acks and other calls that settle deliveries."""


_ConnectionT = TypeVar("_ConnectionT", bound=ReplyWriter)


class ServerState(Generic[_ConnectionT]):
    """The state that the connections of one host share with its server.

    Args:
        on_call_replied: see `OnCallReplied`.
        authenticator: authenticates callers; None: anybody may call.
        stopwatch_s: measures the calls; None: the loop's clock.
        replies: the unwritten replies of its connections; None: no other part of the host writes them.
        audit: notes the changes of administrators; None: nobody does.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        service: RpcService,
        limits: RpcLimits,
        on_call_replied: OnCallReplied = lambda method, code, seconds: None,
        authenticator: Authenticator | None = None,
        stopwatch_s: Callable[[], float] | None = None,
        replies: UnwrittenReplies | None = None,
        audit: Audit | None = None,
    ) -> None:
        self.loop = loop
        self.replies = replies or UnwrittenReplies(loop)
        self.on_call_replied = on_call_replied
        self.stopwatch_s = stopwatch_s or loop.time
        self.service = service
        self.authenticator = authenticator
        self.audit = audit
        self.methods_by_prefix = {
            head_prefix(CALL, name): (call_head(name), method) for name, method in service.methods.items()
        }
        self.limits = limits
        # Read for each call: a read from the options themselves takes longer than from here.
        self.calls_in_flight_max = limits.calls_in_flight_max
        self.calls_in_flight_per_connection_max = limits.calls_in_flight_per_connection_max
        self.settling_calls_reserve = limits.calls_in_flight_max // SETTLING_PART
        self.settling_calls_per_connection_reserve = limits.calls_in_flight_per_connection_max // SETTLING_PART
        self.write_buffer_bytes_max = limits.write_buffer_bytes_max
        self.stall_timeout_s = limits.stall_timeout_ms / 1000
        self.idle_timeout_s = limits.idle_timeout_ms / 1000
        self.reply_grace_s = limits.reply_grace_ms / 1000
        self.decoder = Decoder(DecodeLimits(limits.frame_bytes_max, limits.container_items_max))
        self.byte_budget = ByteBudget(limits.in_flight_bytes_max)
        self.unread_replies = PeerBudget(limits.in_flight_bytes_max)
        self.waiting_calls = WaitingCalls(2 * limits.calls_in_flight_max, limits.in_flight_bytes_max // 2)
        """The places of calls that wait: twice the calls, so that a single owner may have `calls_in_flight_max`. Their bytes are in `byte_budget`, too."""
        self.peer_log = PeerLog(loop.time)
        self.connections: dict[_ConnectionT, None] = {}
        self.unauthenticated = PeerBudget(limits.connections_max)
        """The places of connections without a principal, if the host authenticates. They give way to others."""
        self.surplus_connections: dict[_ConnectionT, None] = {}
        """Open connections above `connections_max`: their calls are refused, then they are closed."""
        self.refused_connection_count = 0
        """Connections refused because there were too many."""
        self.calls_in_flight = 0
        """The number of calls in flight, those that wait included."""
        self.is_stopping = False
        self.idle_waiter: asyncio.Future[None] | None = None

    def on_call_or_connection_ended(self) -> None:
        idle = self.idle_waiter
        if idle is not None and not idle.done():
            idle.set_result(None)
