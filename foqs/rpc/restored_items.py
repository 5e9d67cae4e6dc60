"""Parses the items of `restoreItems` into the core's type.

Always true: results are validated, and errors name the field by its path in the request.
Knows nothing of calls or the queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from foqs.catalog.namespace_settings import NamespaceSettings
from foqs.catalog.topic_keys import TopicKeys
from foqs.core.items import validation
from foqs.core.items.idempotency_keys import item_digest, key_alone_digest
from foqs.core.items.item import DeliveryPolicy, State
from foqs.core.items.item_with_history import ItemWithHistory
from foqs.rpc import request_structs
from foqs_contract.errors import FoqsError, InvalidArgument, LimitExceeded
from foqs_contract.idl import ttypes
from foqs_contract.key_slots import restore_key

RESTORE_KEY_BYTES_MAX: Final = 200
RESTORED_ATTEMPT_MAX: Final = 1_000_000_000
"""The most attempts of a restored item. It leaves room in 32 bits for the deliveries that follow: a row whose attempt overflows could not be leased."""


def parse_restored_items(
    raws: Sequence[ttypes.RestoredItem], namespace: str, settings: NamespaceSettings, topic_keys: TopicKeys
) -> tuple[list[ItemWithHistory], dict[int, FoqsError]]:
    """Parse `RestoredItem` structs; return the good items in order, and the errors of the others by place."""
    items: list[ItemWithHistory] = []
    errors: dict[int, FoqsError] = {}
    for place, raw in enumerate(raws):
        try:
            items.append(_parse_restored_item(raw, namespace, settings, topic_keys))
        except FoqsError as error:
            errors[place] = request_structs.with_path(f"items[{place}]", error)
    return items, errors


def _parse_restored_item(
    raw: ttypes.RestoredItem, namespace: str, settings: NamespaceSettings, topic_keys: TopicKeys
) -> ItemWithHistory:
    topic = request_structs.parse_name(raw.topic, "topic")
    assert raw.topic is not None
    payload = validation.check_size(raw.payload or b"", settings.payload_bytes_max, "payload")
    metadata = validation.check_size(raw.metadata or b"", settings.metadata_bytes_max, "metadata")
    validation.check_delivery_time(None, raw.deliver_after_ms)
    ttl_ms, ttl_remaining_ms = _parse_ttl(raw)
    group = None if raw.group is None else validation.check_group(raw.group)
    key = _parse_key(raw)
    return ItemWithHistory(
        namespace,
        topic,
        raw.priority or 0,
        raw.deliver_after_ms,
        settings.lease_ms_default
        if raw.lease_ms is None
        else validation.check_number(raw.lease_ms, 1, settings.lease_ms_max, "lease_ms"),
        ttl_ms,
        DeliveryPolicy.AT_LEAST_ONCE
        if raw.delivery_policy is None
        else request_structs.parse_policy(raw.delivery_policy),
        settings.attempts_max_default
        if raw.attempts_max is None
        else validation.check_number(raw.attempts_max, 0, request_structs.ATTEMPTS_MAX, "attempts_max"),
        payload,
        metadata,
        key if group is None else topic_keys.prefix_of(namespace, topic, group) + validation.check_key_in_group(key),
        # What an enqueue with the same topic, priority, payload and metadata has.
        key_alone_digest(raw.topic, settings.incarnation)
        if group is not None and topic in topic_keys.alone
        else item_digest(raw.topic, raw.priority or 0, payload, metadata, None, settings.incarnation),
        State.READY if raw.state is None else request_structs.parse_state(raw.state, "state"),
        validation.check_number(raw.attempt or 0, 0, RESTORED_ATTEMPT_MAX, "attempt"),
        ttl_remaining_ms,
        None if not raw.trace_context else validation.check_trace_context(raw.trace_context),
        group,
    )


def _parse_ttl(raw: ttypes.RestoredItem) -> tuple[int | None, int | None]:
    """Return (whole TTL, rest of it) in milliseconds, both None for an item without TTL. Raises InvalidArgument."""
    if raw.ttl_ms is None:
        if raw.ttl_remaining_ms is not None:
            raise InvalidArgument("this needs ttl_ms, the whole TTL", field="ttl_remaining_ms")
        return None, None
    ttl_ms = validation.check_ttl(raw.ttl_ms, None)
    if raw.ttl_remaining_ms is None:
        return ttl_ms, ttl_ms
    return ttl_ms, validation.check_number(raw.ttl_remaining_ms, 1, ttl_ms, "ttl_remaining_ms")


def _parse_key(raw: ttypes.RestoredItem) -> bytes:
    if raw.idempotency_key is not None:
        key = validation.check_idempotency_key(raw.idempotency_key)
        if raw.restore_key is not None:
            raise InvalidArgument("an item with an idempotency key needs none; leave this out", field="restore_key")
        return key
    validation.decode_name(raw.restore_key, "restore_key")
    assert raw.restore_key is not None
    if len(raw.restore_key) > RESTORE_KEY_BYTES_MAX:
        raise LimitExceeded(
            f"this has {len(raw.restore_key)} bytes; at most {RESTORE_KEY_BYTES_MAX} are allowed; shorten it",
            field="restore_key",
        )
    return restore_key(raw.restore_key)
