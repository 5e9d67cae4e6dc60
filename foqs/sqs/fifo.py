"""The messages of FIFO queues: their groups, their deduplication ids, and what follows from these.

A FIFO queue is a topic whose policy allows one delivered item of a group at once. Always true: messages with the same
deduplication id have the same idempotency key, as long as the queue is the same; another queue of this name, which was
created later, has other keys. Whether a key is unique in the queue or in a group, the catalog says. Pure.
"""

from __future__ import annotations

import hashlib
from typing import Final

from foqs.catalog.document import QueueEntry
from foqs.catalog.topic_keys import queue_key_start
from foqs.sqs.errors import invalid_parameter, invalid_value, missing_parameter
from foqs.sqs.identifiers import QueueName
from foqs.sqs.parameters import Parameters, check_text
from foqs.sqs.queue_attributes import SCOPE_OF_GROUP, SCOPE_OF_QUEUE

GROUP_LEASES_MAX: Final = 1
"""The limit of the topic of a FIFO queue: strict order."""
KEY_WINDOW_MS: Final = 300_000
"""The deduplication interval."""
IDENTIFIER_CHARS_MAX: Final = 128
"""The longest MessageGroupId, MessageDeduplicationId and ReceiveRequestAttemptId."""
_SEQUENCE_DIGITS: Final = 20
_NOT_VALID_FOR_QUEUE: Final = "The request include parameter that is not valid for this queue type."


def scope_of(entry: QueueEntry) -> str:
    """Return the DeduplicationScope of a FIFO queue: what its keys say, because they place its messages."""
    return SCOPE_OF_QUEUE if entry.keys_in_topic else SCOPE_OF_GROUP


def group_of(parameters: Parameters) -> str:
    """Return MessageGroupId, which a message of a FIFO queue must have. Raises `SqsError`."""
    group = parameters.text("MessageGroupId")
    if not group:
        raise missing_parameter("MessageGroupId")
    return check_text(group, "MessageGroupId", IDENTIFIER_CHARS_MAX)


def deduplication_id(parameters: Parameters, entry: QueueEntry, body: bytes) -> str:
    """Return MessageDeduplicationId, or the hash of the body if the queue deduplicates by content. Raises `SqsError`."""
    given = _given_deduplication_id(parameters, entry)
    return hashlib.sha256(body).hexdigest() if given is None else given


def check_identifiers(parameters: Parameters, entry: QueueEntry) -> None:
    """Check that a message names its group, and what its duplicates share. SQS refuses a whole batch otherwise. Raises `SqsError`."""
    group_of(parameters)
    _given_deduplication_id(parameters, entry)


def _given_deduplication_id(parameters: Parameters, entry: QueueEntry) -> str | None:
    given = parameters.text("MessageDeduplicationId")
    if given is not None:
        return check_text(given, "MessageDeduplicationId", IDENTIFIER_CHARS_MAX)
    if entry.attributes.get("ContentBasedDeduplication") != "true":
        raise invalid_value(
            "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly"
        )
    return None


def check_no_delay(parameters: Parameters) -> None:
    """Refuse a delay of a single message: it would be passed by later ones of its group. Raises `SqsError`."""
    delay_s = parameters.delay_s()
    if delay_s:
        raise invalid_parameter(delay_s, "DelaySeconds", _NOT_VALID_FOR_QUEUE)


def key_of(queue: QueueName, entry: QueueEntry, deduplication_id: str) -> bytes:
    """Return the idempotency key of a message, which is unique in the queue or in its group."""
    named = f"{queue.name}|{deduplication_id}"
    return queue_key_start(entry.keys_since_ms) + hashlib.sha256(named.encode()).hexdigest().encode()


def sequence_number(item_id: str) -> str:
    """Return the SequenceNumber of an item. It rises in each shard, and so in each group."""
    return item_id.partition("-")[2].zfill(_SEQUENCE_DIGITS)
