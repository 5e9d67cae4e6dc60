"""What an earlier version accepted: old names that are refused, and old names and values that still work for one version.

Always true: an old name has one present name, and is in one of the two tables. Knows nothing
of where an option was set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

RENAMED: Final = {
    "[wire]": "[rpc]",
    "[buffer]": "[row_cache]",
    "server.drain_timeout_ms": "server.stop_timeout_ms",
    "calls.handout_bytes_max": "calls.delivery_bytes_max",
    "shard.ready_keys_max": "shard.ready_index_items_max",
    "buffer.loaded_bytes_max": "row_cache.prefetched_bytes_max",
}
"""Old names of sections and options, with their present names."""


@dataclass(slots=True, frozen=True)
class DeprecatedOption:
    """An old name that is accepted, with a warning, from version `since` until version `removed_in`.

    Attributes:
        new: the option that it sets; None if it has no effect any more.
        convert: maps a value of the old option to one of the new; None keeps it.
    """

    old: str
    new: str | None
    since: str
    removed_in: str
    convert: Callable[[Any], Any] | None = None

    def new_value(self, value: Any) -> Any:
        """Return the new option's value; a value of a wrong type is returned as it is, for the check to refuse."""
        if self.convert is None:
            return value
        try:
            return self.convert(value)
        except (TypeError, ValueError, ArithmeticError):
            return value

    @property
    def warning(self) -> str:
        """Return what is deprecated and what to do, in one line."""
        remedy = "remove it, it has no effect" if self.new is None else f"write {self.new}"
        return f"{self.old} is deprecated since {self.since} and ends with {self.removed_in}; {remedy}"


_REMOVED: Final[Mapping[str, Sequence[str]]] = {
    "coordinator": ("kind",),
    "auth": ("timeout_ms", "failure_delay_ms", "failures_max"),
    "rpc": (
        "string_bytes_max",
        "container_items_max",
        "refusals_in_flight_max",
        "handshakes_max",
        "handshake_timeout_ms",
        "calls_in_flight_per_connection_max",
        "stall_timeout_ms",
        "write_buffer_bytes_max",
        "reply_bytes_max",
        "reply_grace_ms",
        "retry_after_ms",
    ),
    "calls": (
        "timeout_ms_default",
        "timeout_ms_max",
        "delivery_wait_ms_max",
        "better_items_max",
        "replay_lookup_items_max",
    ),
    "sqs": ("request_bytes_max",),
    "store": ("connect_timeout_ms",),
    "cluster": (
        "handover_timeout_ms",
        "session_margin_ms",
        "gossip_interval_ms",
        "gossip_page_topics_max",
        "topic_tombstones_max",
    ),
    "catalog": ("poll_interval_ms",),
    "shard": (
        "flush_items_max",
        "flush_items_min",
        "flush_ms_target",
        "flush_contended_ms_target",
        "small_flush_items_max",
        "flush_bytes_max",
        "ready_window_items_max",
        "timer_page_items",
        "purge_page_items",
        "purge_topics_max",
        "purge_topics_per_namespace_max",
        "timer_tick_ms_min",
        "sweep_interval_ms",
        "clock_sample_interval_ms",
        "clock_slew_permille",
        "empty_topic_linger_ms",
        "retry_ms_min",
        "retry_ms_max",
        "breaker_window_ms",
        "breaker_error_percent",
        "breaker_flushes_min",
        "breaker_reset_ms",
    ),
    "row_cache": (
        "written_items_max",
        "prefetched_items_max",
        "prefetch_topic_items_max",
        "prefetch_horizon_ms",
        "demand_decay_ms",
        "prefetch_idle_ms",
        "demand_topics_max",
    ),
}
"""By section: options of 0.1.0 that are constants now, because nothing that a host shows says how to choose them."""
_REMOVED_BY_OLDER_NAMES: Final[Mapping[str, Sequence[str]]] = {
    "rpc": ("silence_timeout_ms", "connections_refused_max"),
    "calls": ("handout_wait_ms_max", "recall_items_max"),
    "cluster": ("drain_timeout_ms", "stop_margin_ms", "exchange_ms", "exchange_topics_max", "gone_topics_max"),
    "shard": ("flush_shared_ms_target", "flush_express_items", "clock_sample_ms", "topic_linger_ms"),
    "row_cache": ("loaded_items_max", "topic_items_max", "horizon_ms", "quiet_ms", "memory_ms", "topics_max"),
    "catalog": ("poll_ms",),
}
"""By the present name of the section: older names of these options."""

DEPRECATED: tuple[DeprecatedOption, ...] = tuple(
    DeprecatedOption(f"{section}.{name}", None, "0.2.0", "0.3.0")
    for removed in (_REMOVED, _REMOVED_BY_OLDER_NAMES)
    for section, names in removed.items()
    for name in names
)
"""Options of the last version that were renamed or removed. In version `removed_in`, an entry with a new name moves to RENAMED."""


@dataclass(slots=True, frozen=True)
class NarrowedRange:
    """An option whose range is narrower since version `since`.

    A value that only the former range has is moved to the nearest one of the present range, with
    a warning, until version `removed_in`.

    Attributes:
        former: the least and the greatest value before `since`.
        present: those of now, as the option has them.
    """

    option: str
    former: tuple[int, int]
    present: tuple[int, int]
    since: str = "0.2.0"
    removed_in: str = "0.3.0"

    def nearest(self, value: object) -> int | None:
        """Return the value to use in place of `value`; None if `value` is not one that only the former range has."""
        (former_least, former_most), (least, most) = self.former, self.present
        if type(value) is not int or not former_least <= value <= former_most or least <= value <= most:
            return None
        return min(max(value, least), most)

    def warning(self, value: object) -> str:
        """Return what is used in place of `value` and what to do, in one line."""
        least, most = self.present
        return (
            f"{self.option}: {value} is outside the range since {self.since}, which is {least} to {most}; "
            f"{self.nearest(value)} is used. It is refused from {self.removed_in} on: write {self.nearest(value)}"
        )


NARROWED: Final[Sequence[NarrowedRange]] = (
    NarrowedRange("calls.items_per_call_max", (1, 100_000), (1, 10_000)),
    NarrowedRange("calls.wait_ms_max", (0, 3_600_000), (0, 120_000)),
    NarrowedRange("cluster.session_timeout_ms", (1_000, 120_000), (3_000, 120_000)),
    NarrowedRange("shard.queue_items_max", (2, 10_000_000), (2_000, 10_000_000)),
    NarrowedRange("shard.queue_bytes_max", (1 << 20, 4 << 30), (4 << 20, 4 << 30)),
    NarrowedRange("shard.ready_index_items_max", (10, 100_000_000), (10_000, 100_000_000)),
)
"""Options whose range is narrower than in the last version."""


def find_deprecated(key: Sequence[str]) -> DeprecatedOption | None:
    """Return the entry of a deprecated option, whose section may have its old name; None if the key is not deprecated."""
    section, *names = key
    dotted = ".".join((RENAMED.get(f"[{section}]", section).strip("[]"), *names))
    return next((entry for entry in DEPRECATED if entry.old == dotted), None)


def present_name(key: Sequence[str]) -> str | None:
    """Return the name that replaced an old section or option, without brackets; None if it has none.

    An old option is also found in the section's new name: rpc.silence_timeout_ms.
    """
    section, *names = key
    new_section = RENAMED.get(f"[{section}]", "").strip("[]")
    if not names:
        return new_section or None
    old_sections = [old.strip("[]") for old, new in RENAMED.items() if new == f"[{section}]"]
    for old_section in (section, *old_sections):
        renamed = RENAMED.get(".".join((old_section, *names)))
        if renamed is not None:
            return renamed
    return ".".join((new_section, *names)) if new_section else None
