"""The origin of a dead letter: the facts that SQS reports and that its new item lacks. Kept in the item's metadata.

Always true: an origin counts only in the queue that it was written for, so a dead letter
that was moved on, or back, is a message like any other; metadata of another producer
is never replaced. Pure.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Final

from foqs.core.items.reserved_starts import ORIGIN_START

_MEMBER: Final = "sqs_origin"
_KINDS: Final = {"queue": str, "source": str, "message_id": str, "receives": int, "first_received_ms": int}


@dataclass(slots=True, frozen=True)
class Origin:
    """The message that a dead letter was before it was moved.

    Attributes:
        queue: the name of the queue that it was moved to.
        source: the name of the queue that it was moved from.
        message_id: the MessageId of the message there.
        receives: the number of times that the message was received there.
        first_received_ms: the moment at which it was received first, in milliseconds since 1970-01-01 UTC.
    """

    queue: str
    source: str
    message_id: str
    receives: int
    first_received_ms: int


def encode(origin: Origin) -> bytes:
    """Return the metadata of a dead letter."""
    return json.dumps({_MEMBER: asdict(origin)}, separators=(",", ":")).encode()


def decode(metadata: bytes | None, queue: str) -> Origin | None:
    """Return the origin of an item that was received from a queue; None if it was not moved there as a dead letter."""
    found = _decode(metadata)
    return found if found is not None and found.queue == queue else None


def may_be_replaced(metadata: bytes | None) -> bool:
    """Return whether metadata is empty or an origin."""
    return not metadata or _decode(metadata) is not None


def _decode(metadata: bytes | None) -> Origin | None:
    if not metadata or not metadata.startswith(ORIGIN_START):
        return None
    try:
        fields: Any = json.loads(metadata)[_MEMBER]
    except (ValueError, KeyError, RecursionError):
        return None
    if not isinstance(fields, dict) or fields.keys() != _KINDS.keys():
        return None
    if not all(type(value) is _KINDS[name] for name, value in fields.items()):
        return None
    return Origin(**fields)
