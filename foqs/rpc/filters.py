"""Parses the filters, changes and pages of requests into the core's types.

Always true: results are validated, and errors name the field by its path in the
request. Knows nothing of calls or the queue.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final, TypeVar

from foqs.core.items import validation
from foqs.core.items.item import PRIORITY_MAX, PRIORITY_MIN, TIME_MS_MAX
from foqs.core.items.life import Event, EventKind
from foqs.core.items.row_filter import ALL_STATES, RowFilter
from foqs.options.options import NamespaceOptions
from foqs.rpc import request_structs
from foqs_contract.errors import FoqsError, InvalidArgument
from foqs_contract.idl import ttypes
from foqs_contract.request import ShardsRequest

PAGE_LIMIT_DEFAULT: Final = 100
PAGE_LIMIT_MAX: Final = 1_000
FILTER_TOPICS_MAX: Final = 1_000

_T = TypeVar("_T")


def parse_change(raw: ttypes.Change | None, settings: NamespaceOptions) -> Event:
    """Parse a `Change` struct into an UPDATE event that names no item yet. Raises FoqsError."""
    if raw is None or (raw.priority is raw.delay_ms is raw.deliver_after_ms is None and raw.metadata is None):
        raise InvalidArgument(
            "this changes nothing; give priority, delay_ms, deliver_after_ms or metadata", field="change"
        )
    try:
        validation.check_delivery_time(raw.delay_ms, raw.deliver_after_ms)
        if raw.metadata is not None:
            validation.check_size(raw.metadata, settings.metadata_bytes_max, "metadata")
    except FoqsError as error:
        raise request_structs.with_path("change", error) from None
    return Event(
        EventKind.UPDATE,
        0,
        delay_ms=raw.delay_ms,
        deliver_after_ms=raw.deliver_after_ms,
        metadata=raw.metadata,
        priority=raw.priority,
    )


def parse_filter(raw: ttypes.ItemFilter | None) -> RowFilter:
    """Parse an `ItemFilter` struct. Raises FoqsError."""
    if raw is None:
        raise InvalidArgument("this is missing; an empty filter matches every item", field="filter")
    states = request_structs.parse_states(raw.states, "filter.states")
    item_filter = RowFilter(
        topic=None if raw.topic is None else validation.decode_name(raw.topic, "filter.topic"),
        states=ALL_STATES if states is None else tuple(sorted(set(states))),
        priority_min=PRIORITY_MIN if raw.priority_min is None else raw.priority_min,
        priority_max=PRIORITY_MAX if raw.priority_max is None else raw.priority_max,
        age_min_ms=0 if raw.age_min_ms is None else raw.age_min_ms,
        age_max_ms=TIME_MS_MAX if raw.age_max_ms is None else raw.age_max_ms,
        topics=_parse_topics(raw),
        group=None if raw.group is None else _parse_group(raw.group),
    )
    if item_filter.priority_min > item_filter.priority_max:
        raise InvalidArgument("this is greater than priority_max; lower it", field="filter.priority_min")
    for field, age_ms in (("age_min_ms", item_filter.age_min_ms), ("age_max_ms", item_filter.age_max_ms)):
        if not 0 <= age_ms <= TIME_MS_MAX:
            raise InvalidArgument(f"{age_ms} ms is outside 0 to {TIME_MS_MAX}", field=f"filter.{field}")
    if item_filter.age_min_ms > item_filter.age_max_ms:
        raise InvalidArgument("this is greater than age_max_ms; lower it", field="filter.age_min_ms")
    return item_filter


def _parse_topics(raw: ttypes.ItemFilter) -> tuple[str, ...] | None:
    """Return the distinct topics of an `ItemFilter` struct; None if it has no list. Raises FoqsError."""
    if raw.topics is None:
        return None
    validation.check_entry_count(len(raw.topics), FILTER_TOPICS_MAX, "filter.topics")
    if raw.topic is not None:
        raise InvalidArgument("give topic or topics, not both", field="filter.topics")
    names = [validation.decode_name(name, f"filter.topics[{place}]") for place, name in enumerate(raw.topics)]
    return tuple(sorted(set(names)))


def _parse_group(raw: bytes) -> bytes:
    try:
        return validation.check_group(raw)
    except FoqsError as error:
        raise request_structs.with_path("filter", error) from None


def parse_page(page: ttypes.Page | None, limit_min: int = 1) -> tuple[int, str | None]:
    """Parse a page, which may be missing, into (limit, cursor). Raises FoqsError."""
    if page is None:
        return PAGE_LIMIT_DEFAULT, None
    limit = PAGE_LIMIT_DEFAULT
    if page.limit is not None:
        limit = validation.check_number(page.limit, limit_min, PAGE_LIMIT_MAX, "page.limit")
    if page.cursor is None:
        return limit, None
    return limit, validation.decode_text(page.cursor, validation.CURSOR_BYTES_MAX, "page.cursor")


def requested_shards(request: ShardsRequest) -> Collection[int] | None:
    """Return the shards that another host asks for; None: all shards of this host."""
    return request.shards if request.forwarded else None


def page_by_name(
    rows: Sequence[_T], name: Callable[[_T], str], page: ttypes.Page | None
) -> tuple[Sequence[_T], str | None]:
    """Return a page of rows that are sorted by name, and the next cursor: the last row's name."""
    limit, cursor = parse_page(page)
    rest = rows if cursor is None else [row for row in rows if name(row) > cursor]
    return rest[:limit], name(rest[limit - 1]) if len(rest) > limit else None
