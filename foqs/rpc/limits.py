"""What the wire allows, in one frozen place.

Holds limits with their units and nothing else. Knows nothing of files or
options; the host fills it.
"""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(slots=True, frozen=True)
class RpcLimits:
    """Each is checked before memory is spent.

    Calls beyond the limits in flight, of one connection or of the host, are
    answered OVERLOADED with a time to retry. The connection is read on all the
    same: were it paused, acks would queue behind its own long polls.
    """

    frame_bytes_max: int = 16 * MIB
    """A longer frame closes its connection."""
    string_bytes_max: int = 16 * MIB
    """A longer string in a frame is refused unread. Above any payload a namespace may allow."""
    container_items_max: int = 10_000
    """A list that claims more is refused unread. Above any batch a call may carry."""
    connections_max: int = 1_000
    """Further connections are answered OVERLOADED and closed."""
    refusals_in_flight_max: int = 50
    """So many of those at a time, for a second each; others are closed at once."""
    handshakes_max: int = 100
    """TLS handshakes under way; further connections are closed at once."""
    handshake_timeout_s: float = 5.0
    """For a TLS handshake, and for the orderly end of TLS."""
    calls_in_flight_max: int = 10_000
    """Over all connections."""
    calls_in_flight_per_connection_max: int = 1_000
    in_flight_bytes_max: int = 256 * MIB
    """Frames begun or not answered yet, and what their items cost decoded, over all connections."""
    stall_timeout_s: float = 60.0
    """For a first frame, for a frame once begun, and for a peer that does not read its replies."""
    idle_timeout_s: float = 3_600.0
    """A connection without calls that sends nothing for this long is closed, without a complaint."""
    write_buffer_bytes_max: int = 32 * MIB
    """Replies that a peer has not read: from a quarter of it on the connection is not read, beyond it it is closed."""
    reply_bytes_max: int = 64 * MIB
    """A longer reply is not sent; the call is answered LIMIT_EXCEEDED."""
    reply_grace_s: float = 1.0
    """A call that its handler has not ended this long after its deadline is ended by the wire."""
    retry_after_ms: int = 100
    """What OVERLOADED tells its clients."""
