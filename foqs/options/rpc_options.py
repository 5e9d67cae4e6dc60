"""The options of `[rpc]` and `[calls]`: the limits of a connection, and of one call.

Knows nothing of connections or calls.
"""

from __future__ import annotations

from typing import Final, Self

from pydantic import model_validator

from foqs.options.options import DAY_MS, HOUR_MS, MIB, MS, PAYLOAD_BYTES_CEILING, Options, check_not_above, option

RESULT_BYTES_MAX: Final = 2_048
"""Limit of what a reply holds of an entry beside a payload: its id, or its error with message, field and owner."""


class RpcOptions(Options):
    """What a connection may cost. Each limit is checked before memory is used."""

    frame_bytes_max: int = option(
        16 * MIB,
        "bytes",
        "A longer frame closes its connection. The default holds a full call of items of the default size.",
        64 * 1024,
        256 * MIB,
    )
    string_bytes_max: int = option(
        16 * MIB,
        "bytes",
        "A text or payload with a longer stated length is refused before it is read. Above any payload that a "
        "namespace allows.",
        64 * 1024,
        256 * MIB,
    )
    container_items_max: int = option(
        10_000,
        "items",
        "A list with a longer stated length is refused before it is read. Above any batch.",
        100,
        1_000_000,
    )
    connections_max: int = option(
        1_000,
        "connections",
        "A further connection takes the place of one that has not authenticated, or is answered OVERLOADED and "
        "closed. Each connection costs a file descriptor and a few buffers.",
        1,
        100_000,
    )
    refusals_in_flight_max: int = option(
        50,
        "connections",
        "The connections beyond connections_max that are answered at the same time, for a second at most. "
        "Others are closed at once.",
        0,
        10_000,
    )
    handshakes_max: int = option(
        100,
        "connections",
        "The TLS handshakes in flight. Further connections are closed at once. Each handshake holds a few "
        "hundred KiB at most.",
        1,
        10_000,
    )
    handshake_timeout_ms: int = option(
        5_000, MS, "A TLS handshake, or an orderly end of TLS, that takes longer is given up.", 100, 60_000
    )
    calls_in_flight_max: int = option(
        10_000,
        "calls",
        "The calls in flight over all connections. Further calls are answered OVERLOADED. A tenth is for acks and "
        "other calls that settle deliveries. Twice as many dequeues may wait for items besides; a principal or "
        "namespace has at most as many as are free.",
        1,
        1_000_000,
    )
    calls_in_flight_per_connection_max: int = option(
        1_000,
        "calls",
        "The calls in flight of one connection, and, counted apart, its dequeues that wait for items. Further "
        "calls are answered OVERLOADED, so that one client cannot take everything.",
        1,
        100_000,
    )
    in_flight_bytes_max: int = option(
        256 * MIB,
        "bytes",
        "The bytes of frames that are being read or not answered yet, over all connections. Further calls are "
        "answered OVERLOADED. Dequeues that wait for items take at most half. As many bytes of replies may be "
        "unread besides; beyond it the peer with most of them loses its oldest connection.",
        MIB,
        64 * 1024 * MIB,
    )
    stall_timeout_ms: int = option(
        60_000,
        MS,
        "A connection is closed if the peer makes no progress for this time: with its first frame, with the "
        "rest of a frame, or with reading its replies.",
        100,
        HOUR_MS,
    )
    idle_timeout_ms: int = option(
        HOUR_MS,
        MS,
        "A connection without calls is closed quietly after this time.",
        1_000,
        DAY_MS,
    )
    write_buffer_bytes_max: int = option(
        32 * MIB,
        "bytes",
        "The replies that a peer has not read. From a quarter of this on the host stops reading from the "
        "connection; beyond it the host closes the connection.",
        64 * 1024,
        1024 * MIB,
    )
    reply_bytes_max: int = option(
        64 * MIB,
        "bytes",
        "A longer reply is not sent; its call is answered LIMIT_EXCEEDED. Only replies of calls that "
        "read can be so long: the limits of `calls` must fit into this one.",
        64 * 1024,
        1024 * MIB,
    )
    reply_grace_ms: int = option(
        1_000,
        MS,
        "A call that has not ended this long after its deadline is ended by force.",
        10,
        60_000,
    )
    retry_after_ms: int = option(100, MS, "The wait before a retry that the host suggests with OVERLOADED.", 1, 60_000)


class CallOptions(Options):
    """What one call may ask for."""

    items_per_call_max: int = option(
        1_000,
        "items",
        "The items of an enqueue or dequeue, or the leases of an ack. Larger batches than some hundreds gain nothing.",
        1,
        100_000,
    )
    topics_per_call_max: int = option(100, "topics", "The topics that one dequeue may name.", 1, 10_000)
    timeout_ms_default: int = option(10_000, MS, "The deadline of a call that names none.", 1, HOUR_MS)
    timeout_ms_max: int = option(120_000, MS, "A longer deadline is shortened to this.", 1, HOUR_MS)
    wait_ms_max: int = option(
        60_000,
        MS,
        "A longer wait of a dequeue is shortened to this. It also stays below the call's deadline.",
        0,
        HOUR_MS,
    )
    delivery_wait_ms_max: int = option(
        1_000,
        MS,
        "A dequeue with some deliveries committed waits at most this long for those of slower shards. Then it "
        "replies without them.",
        1,
        60_000,
    )
    delivery_bytes_max: int = option(
        16 * MIB,
        "bytes",
        "The bytes of one dequeue's reply, estimated with the largest payload that its namespace allows, or "
        "still holds. The dequeue returns fewer items rather than more bytes.",
        MIB,
        48 * MIB,
    )

    better_items_max: int = option(
        10_000,
        "items",
        "How many better items `foqs explain` counts before the one in question. Items that are not in memory "
        "are read for it.",
        0,
        1_000_000,
    )

    replay_lookup_items_max: int = option(
        1_000,
        "items",
        "While a namespace is at a limit, items with idempotency keys are looked up, because they may repeat "
        "earlier enqueues. This many are looked up at once for a namespace; further ones are refused. If it "
        "is less than items_per_call_max, larger calls are refused too.",
        0,
        100_000,
    )

    @model_validator(mode="after")
    def _check_pairs(self) -> Self:
        check_not_above(self, "timeout_ms_default", "timeout_ms_max")
        check_not_above(self, "wait_ms_max", "timeout_ms_max")
        return self

    @property
    def reply_bytes_max(self) -> int:
        """The longest reply of a call that changes something; a dequeue returns one item whatever its size is."""
        return self.delivery_bytes_max + PAYLOAD_BYTES_CEILING + self.items_per_call_max * RESULT_BYTES_MAX
