"""The options of `[rpc]` and `[calls]`: the limits of a connection, and of one call.

Knows nothing of connections or calls. `foqs.rpc.rpc_limits` and `foqs.queue.call_limits` have the limits that are no options.
"""

from __future__ import annotations

from typing import Final

from foqs.options.options import DAY_MS, MIB, MS, Options, option
from foqs_contract.size_ceilings import PAYLOAD_BYTES_CEILING

RESULT_BYTES_MAX: Final = 2_048
"""The most bytes of one entry in a reply, without a payload: its id, or its error with message, field and owner."""
TIMEOUT_MS_MAX: Final = 120_000
"""The longest deadline of a call. Idempotency keys are remembered for longer, so that a retry finds them."""
ITEMS_PER_CALL_CEILING: Final = 10_000


class RpcOptions(Options):
    """The limits of the Thrift connections, and of the calls over all of them."""

    frame_bytes_max: int = option(
        16 * MIB,
        "bytes",
        "A longer frame closes its connection. The default holds a full call of items of the default size.",
        64 * 1024,
        256 * MIB,
        change="Raise it if clients lose their connections because their enqueues are longer: the log names the frame. Lower "
        "it if the host is short of memory.",
    )
    connections_max: int = option(
        1_000,
        "connections",
        "A further connection takes the place of one that has not authenticated, or is answered OVERLOADED and "
        "closed. Each connection costs a file descriptor and a few buffers.",
        1,
        100_000,
        change="Raise it, and the limit of open files of the process, if foqs_connections_refused_total rises and each "
        "client needs its connections.",
    )
    calls_in_flight_max: int = option(
        10_000,
        "calls",
        "The calls in flight over all connections. Further calls are answered OVERLOADED. A tenth is for acks and "
        "other calls that settle deliveries. Besides, twice as many dequeues may wait for items; one principal or "
        "namespace alone gets half of these places, by default 10,000. Receives of SQS have places of their own, by "
        "default 750, of which one alone gets 375.",
        1,
        1_000_000,
        change="Raise it if foqs_calls_in_flight reaches nine tenths of it, or dequeues that wait are OVERLOADED, while CPU "
        "and memory are free. Lower it if calls end as DEADLINE_EXCEEDED because the host has too many.",
    )
    in_flight_bytes_max: int = option(
        256 * MIB,
        "bytes",
        "The bytes of frames that are being read or not answered yet, over all connections. Further calls are "
        "answered OVERLOADED. Dequeues that wait for items take at most half. Besides, as many bytes of replies "
        "may be unread; beyond that the peer with the most unread bytes loses its oldest connection. One connection may "
        "leave an eighth unread, and always two of the longest replies.",
        MIB,
        64 * 1024 * MIB,
        change="Raise it if foqs_calls_in_flight_bytes reaches it and there is memory. Lower it if the host is short of memory.",
    )
    idle_timeout_ms: int = option(
        3_600_000,
        MS,
        "A connection without calls is closed after this time, without an error.",
        1_000,
        DAY_MS,
        change="Set it below the idle timeout of a load balancer or firewall in front, if clients find connections that were "
        "cut without an error.",
    )


class CallOptions(Options):
    """The limits of one call."""

    items_per_call_max: int = option(
        1_000,
        "items",
        "The items of an enqueue or dequeue, or the leases of an ack.",
        1,
        ITEMS_PER_CALL_CEILING,
        change="Raise it if a program cannot cut its batches and gets LIMIT_EXCEEDED. Batches of more than some hundreds gain "
        "nothing.",
    )
    atomic_items_max: int = option(
        100,
        "items",
        "The items of an atomic enqueue, or of one completion. They are written by one flush, so others wait for all of them.",
        1,
        1_000,
        change="Raise it if a program must write more items together and gets LIMIT_EXCEEDED. Lower it if small calls wait "
        "long behind atomic ones.",
    )
    topics_per_call_max: int = option(
        100,
        "topics",
        "The topics that one dequeue may name.",
        1,
        ITEMS_PER_CALL_CEILING,
        change="Raise it if a consumer has to name more and gets LIMIT_EXCEEDED.",
    )
    wait_ms_max: int = option(
        60_000,
        MS,
        "A longer wait of a dequeue is shortened to this. It is at most the call's timeout.",
        0,
        TIMEOUT_MS_MAX,
        change="Set it below the idle timeout of a load balancer in front, if waiting dequeues lose their connections.",
    )
    delivery_bytes_max: int = option(
        16 * MIB,
        "bytes",
        "The bytes of one dequeue's reply, estimated with the largest payload that its namespace allows, or "
        "with a larger one that it holds since its limit was lowered. The dequeue returns fewer items rather than more "
        "bytes. It limits the payloads of a page of items too.",
        MIB,
        48 * MIB,
        change="Raise it if dequeues of large payloads return fewer items than they ask for. Lower it if the host or its "
        "consumers are short of memory.",
    )

    @property
    def reply_bytes_max(self) -> int:
        """The longest reply of a call that changes something; a dequeue returns at least one item of any size."""
        return self.delivery_bytes_max + PAYLOAD_BYTES_CEILING + self.items_per_call_max * RESULT_BYTES_MAX
