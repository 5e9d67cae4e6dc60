"""The limits of one call: the options of `[calls]`, and the constants beside them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Self

from foqs.options.rpc_options import TIMEOUT_MS_MAX, CallOptions
from foqs.shard.shard_constants import ShardConstants


@dataclass(slots=True, frozen=True)
class CallConstants:
    """Limits of a call that are no options. The defaults are those of a host."""

    timeout_ms_default: int = 10_000
    """The deadline of a call that names none. FOQS' own clients always name one."""
    timeout_ms_max: int = TIMEOUT_MS_MAX
    """A longer deadline is shortened to this."""
    delivery_wait_ms_max: int = 1_000
    """A dequeue with some deliveries committed waits at most this long for those of slower shards, so that a slow database
    does not keep the items of others. Then it replies without them."""
    atomic_bytes_max: int = ShardConstants().flush_bytes_max // 4
    """Payloads and metadata of an atomic call: it is never divided, and leaves room for others in its flush."""
    better_items_max: int = 10_000
    """How many better items `foqs explain` counts before the one in question: those that are not in memory are read for it."""


@dataclass(slots=True, frozen=True, kw_only=True)
class CallLimits(CallConstants):
    """All limits of a call."""

    items_per_call_max: int
    atomic_items_max: int
    topics_per_call_max: int
    wait_ms_max: int
    delivery_bytes_max: int
    replay_lookup_items_max: int
    """While a namespace is at a limit, items with idempotency keys are looked up, because they may repeat earlier enqueues:
    as many at once for a namespace as one call may have; further ones are refused."""

    @classmethod
    def of(cls, options: CallOptions, constants: CallConstants) -> Self:
        """Return the limits that a configuration sets."""
        return cls(**options.model_dump(), **asdict(constants), replay_lookup_items_max=options.items_per_call_max)
