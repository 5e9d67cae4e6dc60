"""A message that a client sends: from the parameters of SendMessage, or of an entry of a batch, to a new item.

Always true: equal parameters of one call of an SDK give the same item with the same
idempotency key, whichever host gets them. Pure.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from foqs.catalog.document import QueueEntry
from foqs.core.items.item import PRIORITY_MAX, PRIORITY_MIN, TIME_MS_MAX
from foqs.sqs import envelope, fifo, queue_attributes
from foqs.sqs.action_request import ActionRequest
from foqs.sqs.errors import SqsError, invalid_parameter, invalid_value, missing_parameter
from foqs.sqs.identifiers import QueueName
from foqs.sqs.message_attributes import (
    FOQS_PREFIX,
    VALID_CHARS,
    MessageAttribute,
    has_forbidden_char,
    md5_of,
    md5_of_attributes,
    parse_attributes,
    parse_system_attributes,
)
from foqs.sqs.parameters import Parameters, check_text
from foqs_contract.idl import ttypes
from foqs_contract.key_slots import KEY_SLOT_COUNT

PRIORITY_ATTRIBUTE: Final = "foqs.priority"
DELAY_ATTRIBUTE: Final = "foqs.delay_ms"
TTL_ATTRIBUTE: Final = "foqs.ttl_ms"
PRIORITY_TAG: Final = "foqs:priority"

_RANGES: Final = {
    PRIORITY_ATTRIBUTE: (PRIORITY_MIN, PRIORITY_MAX),
    DELAY_ATTRIBUTE: (0, TIME_MS_MAX),
    TTL_ATTRIBUTE: (1, TIME_MS_MAX),
}
_NOT_IN_FIFO: Final = (PRIORITY_ATTRIBUTE, DELAY_ATTRIBUTE)
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)
_INVOCATION_ID: Final = re.compile(r"[A-Za-z0-9_-]{16,64}", re.ASCII)


@dataclass(slots=True, frozen=True)
class OutgoingMessage:
    """A new item, and what the reply says of the message. `size_bytes` counts as SQS counts: body and attributes."""

    item: ttypes.NewItem
    size_bytes: int
    md5: Mapping[str, str]


def message_size(parameters: Parameters) -> int:
    """Return the size of a message as SQS counts it, before the message is checked otherwise. Raises `SqsError`."""
    attributes = parse_attributes(parameters.value("MessageAttributes"))
    return _size((parameters.text("MessageBody") or "").encode("utf-8", "surrogatepass"), attributes)


def parse_message(
    parameters: Parameters, queue: QueueName, entry: QueueEntry, request: ActionRequest, place: int
) -> OutgoingMessage:
    """Return the item of a message.

    Args:
        request: the call: who sends, and its trace. Without a usable invocation id the item has no key.
        place: the place of the message in the call.

    Raises:
        SqsError: the message is not allowed.
    """
    body = parameters.text("MessageBody")
    if not body:
        raise missing_parameter("MessageBody")
    if has_forbidden_char(body):
        raise SqsError("InvalidMessageContents", f"Invalid characters found. {VALID_CHARS}")
    attributes = parse_attributes(parameters.value("MessageAttributes"))
    system = parse_system_attributes(parameters.value("MessageSystemAttributes"))
    body_bytes = body.encode()
    size_bytes = _size(body_bytes, attributes)
    size_max = queue_attributes.number(entry.attributes, "MaximumMessageSize")
    if size_bytes > size_max:
        raise invalid_value(
            f"One or more parameters are invalid. Reason: Message must be shorter than {size_max} bytes."
        )
    trace = system[0].value if system else b""
    group, deduplication_id = _group(parameters, queue), ""
    if queue.is_fifo:
        fifo.check_no_delay(parameters)
        deduplication_id = fifo.deduplication_id(parameters, entry, body_bytes)
    payload = envelope.encode(
        envelope.Message(body, attributes, request.sender, group, trace, deduplication_id=deduplication_id)
    )
    item = _new_item(parameters, queue, entry, attributes, payload)
    # Not in the envelope: each attempt of a call may have another one, and must be the same item.
    item.trace_context = request.trace
    if group:
        item.group = group.encode()
    if queue.is_fifo:
        item.idempotency_key = fifo.key_of(queue, entry, deduplication_id)
    elif request.invocation_id is not None and _INVOCATION_ID.fullmatch(request.invocation_id):
        item.idempotency_key = _key(request.invocation_id, place, queue, parameters.delay_s(), payload)
    hashes = {
        "MD5OfMessageBody": md5_of(body_bytes),
        "MD5OfMessageAttributes": md5_of_attributes(attributes),
        "MD5OfMessageSystemAttributes": md5_of_attributes(system),
    }
    return OutgoingMessage(item, size_bytes, {name: value for name, value in hashes.items() if value is not None})


def too_long_for_namespace(problem: str) -> SqsError:
    """Return the error for a message that the queue allows, but not its namespace."""
    return invalid_value(
        "One or more parameters are invalid. Reason: The namespace of the queue allows no message of this size: "
        f"{problem}."
    )


def _size(body: bytes, attributes: Sequence[MessageAttribute]) -> int:
    return len(body) + sum(attribute.size_bytes for attribute in attributes)


def _group(parameters: Parameters, queue: QueueName) -> str:
    if queue.is_fifo:
        return fifo.group_of(parameters)
    if parameters.text("MessageDeduplicationId") is not None:
        raise invalid_parameter(
            parameters.text("MessageDeduplicationId"),
            "MessageDeduplicationId",
            "The request include parameter that is not valid for this queue type",
        )
    group = parameters.text("MessageGroupId")
    return "" if group is None else check_text(group, "MessageGroupId", fifo.IDENTIFIER_CHARS_MAX)


def _new_item(
    parameters: Parameters,
    queue: QueueName,
    entry: QueueEntry,
    attributes: Sequence[MessageAttribute],
    payload: bytes,
) -> ttypes.NewItem:
    own = {attribute.name: _own_value(attribute) for attribute in attributes if attribute.name.startswith(FOQS_PREFIX)}
    for name in _NOT_IN_FIFO if queue.is_fifo else ():
        if name in own:
            raise invalid_value(
                f"The message attribute '{name}' is not valid for a FIFO queue: its groups are in order."
            )
    delay_s = None if queue.is_fifo else parameters.delay_s()
    if delay_s is None:
        delay_s = queue_attributes.number(entry.attributes, "DelaySeconds")
    delay_ms = own.get(DELAY_ATTRIBUTE, delay_s * 1_000)
    ttl_ms = own.get(TTL_ATTRIBUTE)
    if ttl_ms is None:
        retention_ms = queue_attributes.number(entry.attributes, "MessageRetentionPeriod") * 1_000
        ttl_ms = min(max(retention_ms, delay_ms + 1), TIME_MS_MAX)
    if ttl_ms <= delay_ms:
        raise invalid_value(
            f"A message that is delayed by {delay_ms} ms would expire after {ttl_ms} ms, before it could be received."
        )
    return ttypes.NewItem(
        topic=queue.name.encode(),
        payload=payload,
        # An order that a change of a tag breaks is none.
        priority=0 if queue.is_fifo else own.get(PRIORITY_ATTRIBUTE, default_priority(entry)),
        delay_ms=delay_ms,
        ttl_ms=ttl_ms,
        attempts_max=0,
    )


def default_priority(entry: QueueEntry) -> int:
    """Return the priority of a queue's messages, from its tag; 0 if the tag is no priority."""
    text = entry.tags.get(PRIORITY_TAG, "")
    number = int(text) if _INTEGER.fullmatch(text) else 0
    return number if PRIORITY_MIN <= number <= PRIORITY_MAX else 0


def _own_value(attribute: MessageAttribute) -> int:
    """Return the number in a message attribute of FOQS. Raises `SqsError`."""
    span = _RANGES.get(attribute.name)
    if span is None:
        raise invalid_value(
            f"The message attribute '{attribute.name}' is unknown; names that begin with {FOQS_PREFIX} are reserved."
        )
    low, high = span
    text = "" if attribute.is_binary else attribute.value.decode()
    if not attribute.data_type.startswith("Number") or not _INTEGER.fullmatch(text) or not low <= int(text) <= high:
        raise invalid_value(
            f"The message attribute '{attribute.name}' must be a Number without fraction from {low} to {high}."
        )
    return int(text)


def _key(invocation_id: str, place: int, queue: QueueName, delay_s: int | None, payload: bytes) -> bytes:
    """Return the idempotency key of a message: equal for all attempts of a call, different for another message.

    It names its slot, so that the messages of one call without groups are written by one shard.
    """
    slot = crc32(invocation_id.encode()) % KEY_SLOT_COUNT
    digest = hashlib.sha256(f"{queue.name}|{delay_s}|".encode() + payload).hexdigest()[:32]
    return f"~{slot:03x}sqs-{invocation_id}-{place}-{digest}".encode()
