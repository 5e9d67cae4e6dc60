"""The limits of connections and their calls: the options of `[rpc]`, and the constants beside them.

Each limit is checked before memory is used. Knows nothing of connections.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Final, Self

from foqs.options.rpc_options import CallOptions, RpcOptions

_UNREAD_PART: Final = 8
"""`rpc.in_flight_bytes_max` divided by this is the limit of one connection's unread replies, but it is two longest replies at least."""
_READ_FACTOR: Final = 3
"""The reply of a call that only reads may be this many times as long as the longest one of a call that changes something."""


@dataclass(slots=True, frozen=True)
class RpcConstants:
    """Limits of a connection that are no options. The defaults are those of a host."""

    container_items_max: int = 10_000
    """A list with a longer stated length is refused before it is read: `calls.items_per_call_max` cannot be more."""
    calls_in_flight_per_connection_max: int = 1_000
    """The maximum number of busy calls of one connection, and, counted apart, its waiting ones: a tenth of the usual `rpc.calls_in_flight_max`,
    so that one client cannot take everything. A client with more uses several connections."""
    refusals_in_flight_max: int = 50
    """The maximum number of connections beyond `rpc.connections_max` that are answered at the same time, for a second at most. Others are
    closed at once, and their clients learn no reason."""
    handshakes_max: int = 100
    """The maximum number of TLS handshakes in flight, each of a few hundred KiB at most. Further connections are closed at once."""
    handshake_timeout_ms: int = 5_000
    """A TLS handshake, or an orderly end of TLS, that takes longer is given up."""
    stall_timeout_ms: int = 60_000
    """A connection is closed if the peer makes no progress for this time: with its first frame, with the rest of a frame, or
    with reading its replies. When places or memory are short, the peer with most of them loses one earlier."""
    reply_grace_ms: int = 1_000
    """A call that has not ended this long after its deadline is ended by force. Clients wait longer."""
    retry_after_ms: int = 100
    """The wait before a retry that the host suggests with OVERLOADED: a few flushes."""


@dataclass(slots=True, frozen=True, kw_only=True)
class RpcLimits(RpcConstants):
    """All limits of the connections of a host."""

    frame_bytes_max: int
    connections_max: int
    calls_in_flight_max: int
    in_flight_bytes_max: int
    idle_timeout_ms: int
    reply_bytes_max: int
    """A longer reply is not sent; its call is answered LIMIT_EXCEEDED. Only replies of calls that read can be so long."""
    write_buffer_bytes_max: int
    """The bytes of replies that a peer may leave unread. Beyond it the next reply closes the connection; from a quarter of it on nothing is read."""

    @classmethod
    def of(cls, options: RpcOptions, calls: CallOptions, constants: RpcConstants) -> Self:
        """Return the limits that a configuration sets."""
        return cls(
            **options.model_dump(),
            **asdict(constants),
            reply_bytes_max=_READ_FACTOR * calls.reply_bytes_max,
            write_buffer_bytes_max=max(options.in_flight_bytes_max // _UNREAD_PART, 2 * calls.reply_bytes_max),
        )
