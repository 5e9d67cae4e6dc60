"""Parses the structs of requests into the core's types.

Holds one function for each struct. Always true: results are validated; an error's field
is relative to the struct, and `with_path` adds the path before it; strings of requests are
bytes (see `foqs.rpc.messages`). Knows nothing of calls, connections or the queue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

from foqs.catalog.namespace_settings import NamespaceSettings
from foqs.catalog.topic_keys import TopicKeys
from foqs.core.flush.completions import CompletionEntry
from foqs.core.items import validation
from foqs.core.items.atomic_items import check_completion_items
from foqs.core.items.idempotency_keys import completion_digest, item_digest, key_alone_digest
from foqs.core.items.item import (
    NUMBER_MAX,
    SEQUENCE_BITS,
    SEQUENCE_MAX,
    SHARD_MAX,
    TIME_MS_MAX,
    AbsoluteTimeItem,
    DeliveryPolicy,
    GroupedAbsoluteTimeItem,
    GroupedItem,
    KeyedAbsoluteTimeItem,
    KeyedItem,
    NewItem,
    State,
    parse_id,
)
from foqs.core.items.life import Event, EventKind
from foqs.queue.port import (
    ShardCompletion,
)
from foqs.rpc.request_bytes import UsualItems, UsualLeases
from foqs_contract.errors import FoqsError, InvalidArgument
from foqs_contract.idl import ttypes
from foqs_contract.key_slots import group_prefix

ATTEMPTS_MAX: Final = (1 << 31) - 1
ID_BYTES_MAX: Final = 64
NUMBER_MIN: Final = 1 << SEQUENCE_BITS
_ZERO: Final = ord("0")
_SHARD_BY_TEXT: Final = {str(shard).encode(): shard for shard in range(SHARD_MAX + 1)}
"""All valid spellings of a shard's number."""

parse_name: Final = lru_cache(maxsize=16_384)(validation.decode_name)
"""Parses the name of a namespace or topic. It is cached, because names repeat; equal names are one object."""


def with_path(path: str, error: FoqsError) -> FoqsError:
    """Add `path` before the error's field; return the error."""
    error.field = f"{path}.{error.field}" if error.field else path
    return error


def parse_new_items(
    raws: Any, namespace: str, settings: NamespaceSettings, topic_keys: TopicKeys
) -> tuple[list[NewItem], dict[int, FoqsError]]:
    """Parse `NewItem` structs, or `UsualItems`; return the good items in order, and the errors of the others by place."""
    items: list[NewItem] = []
    errors: dict[int, FoqsError] = {}
    payload_bytes_max, metadata_bytes_max = settings.payload_bytes_max, settings.metadata_bytes_max
    lease_ms, attempts_max, policy = (
        settings.lease_ms_default,
        settings.attempts_max_default,
        DeliveryPolicy.AT_LEAST_ONCE,
    )
    incarnation = settings.incarnation
    known: bytes | None = None
    topic = ""
    is_usual = type(raws) is UsualItems
    key_until_ms: int | None = raws.key_until_ms if is_usual else None
    if key_until_ms is not None and not 0 <= key_until_ms <= TIME_MS_MAX:
        raws, is_usual = list(raws), False  # each item is refused
    for place, raw in enumerate(raws.rows if is_usual else raws):
        trace_context = None
        if is_usual:
            name, priority, payload, metadata, key = raw
        else:
            name, priority, payload, metadata, key = (
                raw.topic,
                raw.priority or 0,
                raw.payload or b"",
                raw.metadata or b"",
                raw.idempotency_key,
            )
            trace_context = raw.trace_context or None
        try:
            if name != known or known is None:
                topic = parse_name(name, "topic")
                known = name
            if len(payload) > payload_bytes_max:
                validation.check_size(payload, payload_bytes_max, "payload")
            if len(metadata) > metadata_bytes_max:
                validation.check_size(metadata, metadata_bytes_max, "metadata")
            if trace_context is not None:
                validation.check_trace_context(trace_context)
            if is_usual or (
                raw.delay_ms is raw.deliver_after_ms is raw.lease_ms is raw.ttl_ms is raw.delivery_policy is None
                and raw.attempts_max is raw.key_until_ms is raw.group is None
            ):
                if key is None:
                    items.append(
                        NewItem(
                            namespace,
                            topic,
                            priority,
                            0,
                            None,
                            lease_ms,
                            None,
                            policy,
                            attempts_max,
                            payload,
                            metadata,
                            trace_context,
                        )
                    )
                    continue
                items.append(
                    KeyedItem(
                        namespace,
                        topic,
                        priority,
                        0,
                        None,
                        lease_ms,
                        None,
                        policy,
                        attempts_max,
                        payload,
                        metadata,
                        validation.check_idempotency_key(key),
                        item_digest(name, priority, payload, metadata, None, incarnation),
                        trace_context,
                        None,
                        key_until_ms,
                    )
                )
            else:
                items.append(
                    _parse_new_item(raw, namespace, topic, payload, metadata, trace_context, settings, topic_keys)
                )
        except FoqsError as error:
            errors[place] = with_path(f"items[{place}]", error)
    return items, errors


def _parse_new_item(
    raw: ttypes.NewItem,
    namespace: str,
    topic: str,
    payload: bytes,
    metadata: bytes,
    trace_context: bytes | None,
    settings: NamespaceSettings,
    topic_keys: TopicKeys,
) -> NewItem:
    """Parse a `NewItem` struct with any fields; those among the arguments were read before. Raises FoqsError."""
    delay_ms, deliver_after_ms = raw.delay_ms, raw.deliver_after_ms
    validation.check_delivery_time(delay_ms, deliver_after_ms)
    if delay_ms is None and deliver_after_ms is None:
        delay_ms = 0
    ttl_ms = raw.ttl_ms
    if ttl_ms is not None:
        validation.check_ttl(ttl_ms, delay_ms)
    values = (
        namespace,
        topic,
        raw.priority or 0,
        delay_ms,
        deliver_after_ms,
        settings.lease_ms_default
        if raw.lease_ms is None
        else validation.check_number(raw.lease_ms, 1, settings.lease_ms_max, "lease_ms"),
        ttl_ms,
        DeliveryPolicy.AT_LEAST_ONCE if raw.delivery_policy is None else parse_policy(raw.delivery_policy),
        settings.attempts_max_default
        if raw.attempts_max is None
        else validation.check_number(raw.attempts_max, 0, ATTEMPTS_MAX, "attempts_max"),
        payload,
        metadata,
    )
    is_absolute = deliver_after_ms is not None and ttl_ms is not None
    group = None if raw.group is None else validation.check_group(raw.group)
    key_until_ms = raw.key_until_ms
    if key_until_ms is not None:
        validation.check_number(key_until_ms, 0, TIME_MS_MAX, "key_until_ms")
    if raw.idempotency_key is None:
        if key_until_ms is not None:
            raise InvalidArgument("an end of a key needs a key; give idempotency_key too", field="key_until_ms")
        if group is not None:
            return (GroupedAbsoluteTimeItem if is_absolute else GroupedItem)(*values, trace_context, group)
        return (AbsoluteTimeItem if is_absolute else NewItem)(*values, trace_context)
    key = validation.check_idempotency_key(raw.idempotency_key)
    if group is not None:
        topic_keys.check_key(topic, key)
        key = topic_keys.prefix_of(namespace, topic, group) + validation.check_key_in_group(key)
    assert raw.topic is not None
    # The digest has the values as requested: a changed default must not make a repeat another item.
    numbers = (raw.delay_ms, deliver_after_ms, raw.lease_ms, raw.ttl_ms, raw.delivery_policy, raw.attempts_max)
    requested = None if numbers.count(None) == len(numbers) else numbers
    digest = (
        key_alone_digest(raw.topic, settings.incarnation)
        if group is not None and topic in topic_keys.alone
        else item_digest(raw.topic, raw.priority or 0, payload, metadata, requested, settings.incarnation)
    )
    return (KeyedAbsoluteTimeItem if is_absolute else KeyedItem)(
        *values, key, digest, trace_context, group, key_until_ms
    )


def parse_policy(value: int) -> DeliveryPolicy:
    """Parse a `DeliveryPolicy`. Raises InvalidArgument."""
    try:
        return DeliveryPolicy(value)
    except ValueError:
        raise InvalidArgument(
            f"{value} is not a delivery policy; give 1 (at least once) or 2 (at most once)", field="delivery_policy"
        ) from None


def parse_state(value: int, field: str) -> State:
    """Parse an `ItemState`. Raises InvalidArgument."""
    try:
        return State(value)
    except ValueError:
        raise InvalidArgument(f"{value} is not a state of items; give 1 (DEFERRED) to 4 (DEAD)", field=field) from None


def parse_states(values: Sequence[int] | None, field: str) -> list[State] | None:
    """Parse a filter's states; return None if it has none. Raises InvalidArgument."""
    if values is None:
        return None
    if not values:
        raise InvalidArgument("this is empty; name at least one state, or leave it out", field=field)
    return [parse_state(value, f"{field}[{place}]") for place, value in enumerate(values)]


def parse_item_id(raw: bytes | None, field: str = "id") -> tuple[int, int]:
    """Parse an item id into (shard, number). Raises InvalidArgument."""
    if raw is None:
        raise InvalidArgument("this is missing; give the id that enqueue or dequeue returned", field=field)
    return parse_id(validation.decode_text(raw, ID_BYTES_MAX, field), field)


def _parse_token(value: int | None) -> int:
    if value is None:
        raise InvalidArgument("this is missing; give the token that the item was delivered with", field="token")
    return int(value)


def parse_topic_counts(raws: Sequence[Any], items_max: int) -> dict[str, int]:
    """Parse `TopicCount` structs into counts by topic. Raises FoqsError for the first bad one."""
    try:
        counts = {parse_name(raw.topic, "topic"): raw.count for raw in raws}
        if len(counts) == len(raws) and min(counts.values()) > 0 and max(counts.values()) <= items_max:
            return counts
    except (FoqsError, TypeError):
        pass  # a name is wrong, or a count is missing
    counts = {}
    for place, raw in enumerate(raws):
        try:
            topic = parse_name(raw.topic, "topic")
            count = validation.check_number(raw.count, 1, items_max, "count")
            if topic in counts:
                raise InvalidArgument("this topic occurs twice in the call; name it once", field="topic")
        except FoqsError as error:
            raise with_path(f"topics[{place}]", error) from None
        counts[topic] = count
    return counts


def parse_lease_columns(raws: Any) -> tuple[list[tuple[int, int]], list[int]] | None:
    """Parse many `Lease` structs, or `UsualLeases`, into (shard, number) pairs and tokens; return None if one is bad or an id is repeated."""
    if type(raws) is UsualLeases:
        texts, tokens = raws.ids, raws.tokens
    else:
        texts = [raw.id for raw in raws]
        tokens = [raw.token for raw in raws]
        if None in tokens:
            return None
    if len(set(texts)) < len(texts):
        return None
    ids = parse_ids(texts)
    return None if ids is None else (ids, tokens)


def parse_ids(texts: Sequence[bytes | None]) -> list[tuple[int, int]] | None:
    """Parse many ids as `parse_id` does; return None if it would refuse one."""
    ids = []
    for text in texts:
        if text is None or len(text) > ID_BYTES_MAX:
            return None
        head, _, tail = text.partition(b"-")
        shard = _SHARD_BY_TEXT.get(head)
        # Only digits, without leading zeros: each id has one spelling.
        if shard is None or not tail.isdigit() or tail[0] == _ZERO:
            return None
        number = int(tail)
        if not NUMBER_MIN < number <= NUMBER_MAX or not number & SEQUENCE_MAX:
            return None
        ids.append((shard, number))
    return ids


def parse_lease(raw: ttypes.Lease) -> tuple[tuple[int, int], int]:
    """Parse a `Lease` struct into ((shard, number), token). Raises InvalidArgument."""
    return parse_item_id(raw.id), _parse_token(raw.token)


def parse_completions(
    raws: Sequence[ttypes.Completion],
    raw_items: Any,
    namespace: str,
    settings: NamespaceSettings,
    topic_keys: TopicKeys,
    items_max: int,
    bytes_max: int,
) -> tuple[list[ShardCompletion], dict[int, FoqsError]]:
    """Parse `Completion` structs with their items; return the good ones in order, and the errors of the others by place.

    Args:
        items_max, bytes_max: of the items of each.

    Raises:
        InvalidArgument: there are more items than the completions have, or fewer.
    """
    counts = [max(0, raw.item_count or 0) for raw in raws]
    if sum(counts) != len(raw_items):
        if 0 in counts:
            raise with_path(f"completions[{counts.index(0)}]", _item_count_error())
        raise InvalidArgument(
            f"these are {len(raw_items)} items, and the completions have {sum(counts)}; give each item_count",
            field="items",
        )
    good, item_errors = parse_new_items(raw_items, namespace, settings, topic_keys)
    rest = iter(good)
    parsed = [None if place in item_errors else next(rest) for place in range(len(raw_items))]
    found: list[ShardCompletion] = []
    errors: dict[int, FoqsError] = {}
    seen: set[bytes | None] = set()
    first = 0
    for place, (raw, count) in enumerate(zip(raws, counts, strict=True)):
        stop = first + count
        try:
            (shard, number), token = _parse_completed_lease(raw, place, seen)
            items = [item for item in parsed[first:stop] if item is not None]
            for item_place in range(first, stop):
                if item_place in item_errors:
                    raise item_errors[item_place]
            check_completion_items(items, items_max, bytes_max, first, f"completions[{place}].item_count")
            digest = completion_digest(
                token, [_requested_item(each, namespace) for each in raw_items[first:stop]], settings.incarnation
            )
            found.append(ShardCompletion(shard, CompletionEntry(number, token, items, digest, first), place))
        except FoqsError as error:
            errors[place] = error
        first = stop
    return found, errors


def _parse_completed_lease(raw: ttypes.Completion, place: int, seen: set[bytes | None]) -> tuple[tuple[int, int], int]:
    """Parse the lease of a `Completion` struct into ((shard, number), token). `seen`: the ids so far. Raises InvalidArgument."""
    try:
        lease = parse_item_id(raw.id), _parse_token(raw.token)
        if raw.id in seen:
            raise InvalidArgument("this id occurs twice in the call; name it once", field="id")
        seen.add(raw.id)
        if raw.item_count is None or raw.item_count < 1:
            raise _item_count_error()
    except FoqsError as error:
        raise with_path(f"completions[{place}]", error) from None
    return lease


def _item_count_error() -> InvalidArgument:
    return InvalidArgument(
        "this is missing or below 1; give the number of the items that follow, or ack an item from which nothing follows",
        field="item_count",
    )


def _requested_item(raw: Any, namespace: str) -> tuple[bytes, bytes]:
    """Return the digest of a `NewItem` struct with the values as requested, and its idempotency key, behind its group."""
    numbers = (raw.delay_ms, raw.deliver_after_ms, raw.lease_ms, raw.ttl_ms, raw.delivery_policy, raw.attempts_max)
    requested = None if numbers.count(None) == len(numbers) else numbers
    digest = item_digest(raw.topic, raw.priority or 0, raw.payload or b"", raw.metadata or b"", requested)
    group = b"" if raw.group is None else group_prefix(namespace.encode(), raw.group)
    return digest, group + (raw.idempotency_key or b"")


def lease_event_parser(kind: EventKind, namespace: str) -> Callable[[ttypes.Lease], tuple[int, Event]]:
    """Return a parser of `Lease` structs into (shard, event) with events of this kind."""

    def read(raw: ttypes.Lease) -> tuple[int, Event]:
        (shard, number), token = parse_lease(raw)
        return shard, Event(kind, number, namespace, token=token)

    return read


def extension_event_parser(
    namespace: str, settings: NamespaceSettings
) -> Callable[[ttypes.Extension], tuple[int, Event]]:
    """Return a parser of `Extension` structs into (shard, event)."""

    def read(raw: ttypes.Extension) -> tuple[int, Event]:
        shard, number = parse_item_id(raw.id)
        lease_ms = parse_extension_ms(raw.lease_ms, settings, 0)
        return shard, Event(EventKind.EXTEND, number, namespace, token=_parse_token(raw.token), lease_ms=lease_ms)

    return read


def parse_extension_ms(lease_ms: int | None, settings: NamespaceSettings, lease_ms_min: int = 1) -> int | None:
    """Return the time from now to the new end of a lease; None means the item's own. Raises FoqsError."""
    return (
        None if lease_ms is None else validation.check_number(lease_ms, lease_ms_min, settings.lease_ms_max, "lease_ms")
    )


def nack_event_parser(
    namespace: str, settings: NamespaceSettings, jitter: Callable[[], float]
) -> Callable[[ttypes.Nack], tuple[int, Event]]:
    """Return a parser of `Nack` structs into (shard, event); `jitter` returns a random number in [0, 1)."""
    metadata_bytes_max = settings.metadata_bytes_max

    def read(raw: ttypes.Nack) -> tuple[int, Event]:
        shard, number = parse_item_id(raw.id)
        token = _parse_token(raw.token)
        validation.check_delivery_time(raw.delay_ms, raw.deliver_after_ms)
        if raw.dead and (raw.delay_ms is not None or raw.deliver_after_ms is not None):
            raise InvalidArgument(
                "a dead item is not delivered again; leave out delay_ms and deliver_after_ms", field="dead"
            )
        if raw.metadata is not None:
            validation.check_size(raw.metadata, metadata_bytes_max, "metadata")
        event = Event(
            EventKind.NACK,
            number,
            namespace,
            token=token,
            delay_ms=raw.delay_ms,
            deliver_after_ms=raw.deliver_after_ms,
            jitter=jitter(),
            metadata=raw.metadata,
            dead=bool(raw.dead),
        )
        return shard, event

    return read


def id_event_parser(event: Event) -> Callable[[bytes], tuple[int, Event]]:
    """Return a parser of ids into (shard, event) with copies of this event."""

    def read(raw: bytes) -> tuple[int, Event]:
        shard, number = parse_item_id(raw, "")
        return shard, replace(event, id=number)

    return read
