"""Converts Thrift structs to the core's types and back.

Holds one function for each struct, and the conversion of errors. Always true:
results are validated; an error's field is relative to the struct, and
`with_path` adds the path before it; strings of requests are bytes (see
`foqs.rpc.messages`). Knows nothing of calls, connections or the queue.
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
from foqs.core.items.explanation import dead_reason
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
    Row,
    State,
    parse_id,
)
from foqs.core.items.life import Event, EventKind
from foqs.queue.port import (
    AlreadyGone,
    CompletedIds,
    CompletionOutcome,
    EnqueueOutcome,
    ItemDetails,
    ItemExplanation,
    LeasedItems,
    Outcome,
    Repeated,
    RowView,
    ShardCompletion,
    TopicStats,
)
from foqs.rpc.messages import encode_struct
from foqs.rpc.reply_bytes import dequeue_result_bytes, enqueue_result_bytes
from foqs.rpc.request_bytes import UsualItems, UsualLeases
from foqs.rpc.topic_policies import fairness_number
from foqs_contract.errors import FoqsError, InvalidArgument
from foqs_contract.idl import Foqs, ttypes
from foqs_contract.key_slots import group_prefix

ATTEMPTS_MAX: Final = (1 << 31) - 1
ID_BYTES_MAX: Final = 64
ERROR_MESSAGE_BYTES_MAX: Final = 1_024
ERROR_FIELD_BYTES_MAX: Final = 256
"""The longest field of an error: with the other fields, an outcome stays below `RESULT_BYTES_MAX` of `foqs.options.rpc_options`."""
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


# ------------------------------------------------------------------- requests


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


# -------------------------------------------------------------------- replies


def error_struct(error: FoqsError) -> ttypes.Error:
    """Return the `Error` struct of an error."""
    owner = error.owner
    return ttypes.Error(
        code=ttypes.ErrorCode(error.number),
        message=_error_text(error.message, ERROR_MESSAGE_BYTES_MAX),
        field=None if error.field is None else _error_text(error.field, ERROR_FIELD_BYTES_MAX),
        retry_after_ms=error.retry_after_ms,
        owner=ttypes.HostAddress(owner[0], owner[1]) if owner else None,
    )


def _error_text(text: str, bytes_max: int) -> str:
    """Escape what is not valid text, and shorten it: an error may quote a caller's bytes, and must be sent nevertheless."""
    data = text.encode(errors="backslashreplace")
    return data.decode() if len(data) <= bytes_max else data[: bytes_max - 3].decode(errors="ignore") + "..."


def enqueue_reply(results: Sequence[EnqueueOutcome]) -> ttypes.EnqueueReply:
    """Return the reply with these ids and errors, for `encode_enqueue_reply`. If all are ids, they stay texts."""
    if set(map(type, results)) == {str}:
        ids: Any = results
        return ttypes.EnqueueReply(ids)
    make = ttypes.EnqueueResult
    structs = [
        make(result) if type(result) is str else _enqueue_result(place, result) for place, result in enumerate(results)
    ]
    return ttypes.EnqueueReply(structs)


def encode_enqueue_reply(is_compact: bool, reply: Any) -> bytes:
    """Return the bytes of the result. The entries are those of `enqueue_reply`, or structs."""
    results = reply.results
    if results and type(results[0]) is str:
        encoded = None if is_compact else enqueue_result_bytes(results)
        if encoded is not None:
            return encoded
        reply = ttypes.EnqueueReply([ttypes.EnqueueResult(result) for result in results])
    return encode_struct(is_compact, Foqs.enqueue_result(reply), _ENQUEUE_RESULT_SPEC)


_ENQUEUE_RESULT_SPEC: Final = [Foqs.enqueue_result, Foqs.enqueue_result.thrift_spec]


def _enqueue_result(place: int, result: Any) -> ttypes.EnqueueResult:
    if type(result) is Repeated:
        return ttypes.EnqueueResult(result.id, repeated=True)
    error = error_struct(result)
    if error.field and not error.field.startswith("items"):
        # The queue names only the item's field: it does not know the item's place in the call.
        error.field = f"items[{place}].{error.field}"
    return ttypes.EnqueueResult(None, error)


def outcomes_reply(results: Sequence[Outcome]) -> ttypes.OutcomesReply:
    """Return the reply with these outcomes."""
    if results.count(None) == len(results):
        return _all_done_reply(len(results))
    return ttypes.OutcomesReply([_outcome_struct(result) for result in results])


def move_items_reply(results: Sequence[EnqueueOutcome]) -> ttypes.MoveItemsReply:
    """Return the reply with the ids of these new items, and errors."""
    return ttypes.MoveItemsReply([_move_outcome(result) for result in results])


def complete_reply(results: Sequence[CompletionOutcome]) -> ttypes.CompleteReply:
    """Return the reply with the ids of the items of these completions, and errors."""
    return ttypes.CompleteReply([_completion_outcome(place, result) for place, result in enumerate(results)])


def _completion_outcome(place: int, result: CompletionOutcome) -> ttypes.CompletionOutcome:
    if isinstance(result, CompletedIds):
        return ttypes.CompletionOutcome(None, result.ids, result.is_repeat or None)
    error = error_struct(result)
    if error.field == "items":  # a limit, for all items of the completion
        error.field = f"completions[{place}]"
    return ttypes.CompletionOutcome(error)


def _move_outcome(result: EnqueueOutcome) -> ttypes.MoveOutcome:
    if isinstance(result, FoqsError):
        return ttypes.MoveOutcome(error_struct(result))
    return ttypes.MoveOutcome(None, *((result, None) if isinstance(result, str) else (result.id, True)))


def _outcome_struct(result: Outcome) -> ttypes.Outcome:
    if result is None:
        return _DONE
    if isinstance(result, AlreadyGone):
        return _ALREADY_GONE
    assert isinstance(result, FoqsError)
    return ttypes.Outcome(error_struct(result))


@lru_cache(maxsize=1_024)
def _all_done_reply(count: int) -> ttypes.OutcomesReply:
    return ttypes.OutcomesReply([_DONE] * count)


_DONE: Final = ttypes.Outcome()
_ALREADY_GONE: Final = ttypes.Outcome(already_gone=True)


def dequeue_reply(deliveries: LeasedItems, incarnation: int | None = None) -> ttypes.DequeueReply:
    """Return the reply with these deliveries, for `encode_dequeue_reply`. `incarnation`: the number of their namespace's."""
    outage = deliveries.outage
    items: Any = deliveries.items
    shards = None if outage is None else outage.shards
    return ttypes.DequeueReply(items, unavailable_shards=shards, incarnation=incarnation if items else None)


def encode_dequeue_reply(is_compact: bool, reply: Any) -> bytes:
    """Return the bytes of the result. The deliveries are those of `dequeue_reply`, or structs."""
    items = reply.items
    if items and isinstance(items[0], RowView):
        encoded = None if is_compact else dequeue_result_bytes(items, reply.availability, reply.incarnation)
        if encoded is not None:
            return encoded
        structs = [delivery_struct(item) for item in items]
        reply = ttypes.DequeueReply(structs, reply.availability, incarnation=reply.incarnation)
    return encode_struct(is_compact, Foqs.dequeue_result(reply), _DEQUEUE_RESULT_SPEC)


_DEQUEUE_RESULT_SPEC: Final = [Foqs.dequeue_result, Foqs.dequeue_result.thrift_spec]


def delivery_struct(item: RowView) -> ttypes.Delivery:
    row, now_ms = item.row, item.now_ms
    age_ms = now_ms - row.enqueued_at_ms
    first_ms = row.first_delivered_at_ms
    first_age_ms = None if first_ms is None else now_ms - first_ms if now_ms > first_ms else 0
    return ttypes.Delivery(
        f"{item.shard}-{row.id}",
        row.token,
        row.topic,
        row.priority,
        row.payload,
        row.metadata,
        row.attempt,
        item.lease_left_ms,
        age_ms if age_ms > 0 else 0,
        row.attempts_max,
        first_age_ms,
        row.trace_context,
        _group_name(row),
    )


def item_view(item: RowView, with_payload: bool) -> ttypes.ItemView:
    row = item.row
    now_ms = item.now_ms
    view = ttypes.ItemView(
        id=f"{item.shard}-{row.id}",
        topic=row.topic,
        state=ttypes.ItemState(int(row.state)),
        priority=row.priority,
        payload=row.payload if with_payload else None,
        metadata=row.metadata,
        delivery_policy=ttypes.DeliveryPolicy(int(row.policy)),
        attempt=row.attempt,
        attempts_max=row.attempts_max,
        lease_ms=row.lease_ms,
        age_ms=max(0, now_ms - row.enqueued_at_ms),
        payload_bytes=row.payload_bytes,
        trace_context=row.trace_context,
        group=_group_name(row),
    )
    if row.first_delivered_at_ms is not None:
        view.first_delivery_age_ms = max(0, now_ms - row.first_delivered_at_ms)
    if row.state is State.DEFERRED:
        view.due_in_ms = max(0, row.deliver_after_ms - now_ms)
    elif row.state is State.LEASED and row.due_ms is not None:
        view.lease_remaining_ms = item.lease_left_ms
    if row.expires_at_ms is not None:
        view.ttl_remaining_ms = max(0, row.expires_at_ms - now_ms)
    view.dead_reason = dead_reason(row)
    if type(item) is ItemDetails and item.idempotency_key is not None:
        view.idempotency_key = item.idempotency_key.decode()
    return view


def _group_name(row: Row) -> str | None:
    return None if row.item_group is None else row.item_group.decode()


def explain_reply(explanation: ItemExplanation, with_payload: bool) -> ttypes.ExplainReply:
    item = explanation.item
    return ttypes.ExplainReply(
        item=None if item is None else item_view(item, with_payload),
        reasons=list(explanation.reasons),
        remedies=list(explanation.remedies),
        better_items=explanation.better_items,
        better_items_more=explanation.better_items_more or None,
        absent=explanation.absent or None,
    )


def topic_stats(stats: TopicStats) -> ttypes.TopicStats:
    return ttypes.TopicStats(
        topic=stats.topic,
        ready=stats.ready,
        deferred=stats.deferred,
        leased=stats.leased,
        dead=stats.dead,
        best_priority=stats.best_priority,
        oldest_ready_age_ms=stats.oldest_ready_age_ms,
        next_due_in_ms=stats.next_due_in_ms,
        paused=stats.paused,
        counts_lag=stats.counts_lag,
        group_leases_max=stats.group_leases_max,
        fair=fairness_number(stats.fair),
    )
