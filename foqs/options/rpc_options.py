"""The options of `[rpc]` and `[calls]`: what a connection may cost, and what one call may ask for.

Knows nothing of connections or calls.
"""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from foqs.options.options import DAY_MS, HOUR_MS, MIB, MS, Options, check_not_above, option


class RpcOptions(Options):
    """What a connection may cost; each limit is checked before memory is spent."""

    frame_bytes_max: int = option(
        16 * MIB,
        "bytes",
        "A longer frame closes its connection. Holds a full call of items of the default size.",
        64 * 1024,
        256 * MIB,
    )
    string_bytes_max: int = option(
        16 * MIB,
        "bytes",
        "A text or payload in a frame that claims more is refused unread; above any payload that a namespace allows.",
        64 * 1024,
        256 * MIB,
    )
    container_items_max: int = option(
        10_000, "items", "A list in a frame that claims more is refused unread; above any batch.", 100, 1_000_000
    )
    connections_max: int = option(
        1_000,
        "connections",
        "Calls on further connections are answered OVERLOADED, and those are closed; each costs a file and a few buffers.",
        1,
        100_000,
    )
    refusals_in_flight_max: int = option(
        50,
        "connections",
        "Connections beyond connections_max that are answered at a time, for a second at most; others are closed at once.",
        0,
        10_000,
    )
    handshakes_max: int = option(
        100,
        "connections",
        "TLS handshakes under way; further connections are closed at once. Each holds a few hundred KiB at most.",
        1,
        10_000,
    )
    handshake_timeout_ms: int = option(
        5_000, MS, "A TLS handshake that is not done by then is given up, and so is an orderly end of TLS.", 100, 60_000
    )
    calls_in_flight_max: int = option(
        10_000, "calls", "Over all connections; further calls are answered OVERLOADED.", 1, 1_000_000
    )
    calls_in_flight_per_connection_max: int = option(
        1_000,
        "calls",
        "Further calls of one connection are answered OVERLOADED, so one client cannot take all.",
        1,
        100_000,
    )
    in_flight_bytes_max: int = option(
        256 * MIB,
        "bytes",
        "Frames begun or not answered yet, over all connections; beyond it calls are answered OVERLOADED.",
        MIB,
        64 * 1024 * MIB,
    )
    stall_timeout_ms: int = option(
        60_000,
        MS,
        "A connection that owes a first frame, the rest of one, or the reading of its replies, and does nothing for "
        "this long is closed.",
        100,
        HOUR_MS,
    )
    idle_timeout_ms: int = option(
        HOUR_MS,
        MS,
        "A connection without calls that sends nothing for this long is closed, without a complaint.",
        1_000,
        DAY_MS,
    )
    write_buffer_bytes_max: int = option(
        32 * MIB,
        "bytes",
        "Replies that a peer has not read: from a quarter of it on the connection is not read, beyond it it is closed.",
        64 * 1024,
        1024 * MIB,
    )
    reply_bytes_max: int = option(
        64 * MIB,
        "bytes",
        "A longer reply is not sent; its call is answered LIMIT_EXCEEDED.",
        64 * 1024,
        1024 * MIB,
    )
    reply_grace_ms: int = option(
        1_000,
        MS,
        "A call that has not ended this long after its deadline is ended by force, as a last resort.",
        10,
        60_000,
    )
    retry_after_ms: int = option(100, MS, "When a client that was answered OVERLOADED should try again.", 1, 60_000)


class CallOptions(Options):
    """What one call may ask for."""

    items_per_call_max: int = option(
        1_000,
        "items",
        "Items of an enqueue or dequeue, leases of an ack; past some hundreds a batch gains nothing.",
        1,
        100_000,
    )
    topics_per_call_max: int = option(100, "topics", "Topics that one dequeue may name.", 1, 10_000)
    timeout_ms_default: int = option(10_000, MS, "The deadline of a call that names none.", 1, HOUR_MS)
    timeout_ms_max: int = option(120_000, MS, "A longer deadline is cut to this.", 1, HOUR_MS)
    wait_ms_max: int = option(
        60_000,
        MS,
        "A dequeue that wants to wait longer for work is cut to this; it also stays below its deadline.",
        0,
        HOUR_MS,
    )
    delivery_wait_ms_max: int = option(
        1_000,
        MS,
        "A dequeue that has some items committed waits this long at most for those of slower shards, then answers without them.",
        1,
        60_000,
    )
    delivery_bytes_max: int = option(
        16 * MIB,
        "bytes",
        "What one dequeue may carry, reckoned by the largest payload its namespace allows, or holds from a time when it "
        "allowed more; it returns fewer items rather than more bytes.",
        MIB,
        48 * MIB,
    )

    better_items_max: int = option(
        10_000,
        "items",
        "Explaining why an item is not delivered counts the items before it so far; those beyond what is held in memory "
        "are read for it.",
        0,
        1_000_000,
    )

    replay_lookup_items_max: int = option(
        1_000,
        "items",
        "Items with keys that come while their namespace is at a limit are looked up, in case they only repeat earlier ones: so "
        "many of a namespace at once. Further ones are refused unseen; below items_per_call_max so are larger calls.",
        0,
        100_000,
    )

    @model_validator(mode="after")
    def _check_pairs(self) -> Self:
        check_not_above(self, "timeout_ms_default", "timeout_ms_max")
        check_not_above(self, "wait_ms_max", "timeout_ms_max")
        return self
