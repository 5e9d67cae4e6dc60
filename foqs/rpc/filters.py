"""Which items a request means and what is to become of them: filters and changes to the core's types.

Always true: what comes out of here was validated, and errors name the field by
its path in the request. Knows nothing of calls or the queue.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from foqs.core.errors import FoqsError, InvalidArgument
from foqs.core.items import validation
from foqs.core.items.item import PRIORITY_MAX, PRIORITY_MIN, TIME_MS_MAX, State
from foqs.core.items.item_filter import ALL_STATES, ItemFilter
from foqs.core.items.life import Event, EventKind
from foqs.options.options import NamespaceOptions
from foqs.rpc import codec
from foqs_client.idl import ttypes

_KINDS: Final = {
    ttypes.BulkAction.CANCEL: EventKind.CANCEL,
    ttypes.BulkAction.UPDATE: EventKind.UPDATE,
    ttypes.BulkAction.REDRIVE: EventKind.REDRIVE,
}


def parse_change(raw: Any, settings: NamespaceOptions) -> Event:
    """A `Change` struct as an UPDATE of no item yet. Raises FoqsError."""
    if raw is None or (raw.priority is raw.delay_ms is raw.deliver_after_ms is raw.metadata is None):
        raise InvalidArgument(
            "this changes nothing; give priority, delay_ms, deliver_after_ms or metadata", field="change"
        )
    try:
        validation.check_delivery_time(raw.delay_ms, raw.deliver_after_ms)
        if raw.metadata is not None:
            validation.check_size(raw.metadata, settings.metadata_bytes_max, "metadata")
    except FoqsError as error:
        raise codec.with_path("change", error) from None
    return Event(
        EventKind.UPDATE,
        0,
        delay_ms=raw.delay_ms,
        deliver_after_ms=raw.deliver_after_ms,
        metadata=raw.metadata,
        priority=raw.priority,
    )


def parse_filter(raw: Any) -> ItemFilter:
    """An `ItemFilter` struct. Raises FoqsError."""
    if raw is None:
        raise InvalidArgument("this is missing; an empty filter matches every item", field="filter")
    states = codec.parse_states(raw.states, "filter.states")
    only = ItemFilter(
        topic=None if raw.topic is None else validation.decode_name(raw.topic, "filter.topic"),
        states=ALL_STATES if states is None else tuple(sorted(set(states))),
        priority_min=PRIORITY_MIN if raw.priority_min is None else raw.priority_min,
        priority_max=PRIORITY_MAX if raw.priority_max is None else raw.priority_max,
        age_min_ms=0 if raw.age_min_ms is None else raw.age_min_ms,
        age_max_ms=TIME_MS_MAX if raw.age_max_ms is None else raw.age_max_ms,
    )
    if only.priority_min > only.priority_max:
        raise InvalidArgument("no priority is as high as this and as low as priority_max", field="filter.priority_min")
    for field, age_ms in (("age_min_ms", only.age_min_ms), ("age_max_ms", only.age_max_ms)):
        if not 0 <= age_ms <= TIME_MS_MAX:
            raise InvalidArgument(f"{age_ms} ms is outside 0 to {TIME_MS_MAX}", field=f"filter.{field}")
    if only.age_min_ms > only.age_max_ms:
        raise InvalidArgument("no age is as high as this and as low as age_max_ms", field="filter.age_min_ms")
    return only


def parse_bulk(request: Any, namespace: str, settings: NamespaceOptions) -> tuple[Event, ItemFilter]:
    """What a `BulkRequest` is to do, and with which items. Raises FoqsError."""
    only = parse_filter(request.filter)
    kind = _KINDS.get(request.action)
    if kind is None:
        raise InvalidArgument("give CANCEL, UPDATE or REDRIVE", field="action")
    if kind is EventKind.UPDATE:
        return replace(parse_change(request.change, settings), namespace=namespace), only
    if request.change is not None:
        raise InvalidArgument("only UPDATE changes items; leave this out", field="change")
    if kind is EventKind.REDRIVE:
        if request.filter.states is not None and only.states != (State.DEAD,):
            raise InvalidArgument("only dead items can be redriven; leave the states out", field="filter.states")
        only = replace(only, states=(State.DEAD,))
    return Event(kind, 0, namespace), only
