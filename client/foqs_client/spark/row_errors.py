"""The treatment of rows that cannot be items: the task fails, or they are skipped, or become dead letters.

Holds `RowErrors`, which counts them, `MalformedRow` and `DeadLetter`. Always true: only
the fault of a row is forgiven, never that of a namespace or of a host. A dead letter has
the row's payload, and the reason in its metadata. Its key follows from the row, never
from the reason or the topic of dead letters, so each attempt makes the same key. Pure.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import replace
from hashlib import blake2b
from typing import Any, Final

from foqs_client.errors import FoqsError, InvalidArgument, KeyConflict, LimitExceeded
from foqs_client.spark.item_columns import COLUMNS, VALUE_BYTES_MAX, SinkError
from foqs_client.spark.options import OnError
from foqs_client.types import Item
from foqs_contract.key_slots import key_slot_of

CUT_PAYLOAD_BYTES: Final = 1_024
"""The length of the payload of a dead letter whose row has a payload that is too large."""
METADATA_BYTES_MAX: Final = 1_000
"""Limit of the metadata of a dead letter, in bytes; a namespace allows 1,024 bytes by default."""
REASON_LENGTH_MAX: Final = 400
REASONS_MAX: Final = 3
"""Limit of the reasons that are remembered for the log."""

_FIELD_COLUMNS: Final = {
    "deliver_after_ms": "deliver_after",
    "delay_ms": "deliver_after",
    "ttl_ms": "ttl",
    "lease_ms": "lease",
    "group": "item_group",
}


class MalformedRow(SinkError):
    """A row cannot be an item, because of a value.

    Args:
        message: the sentence.
        column: the column of the value.
    """

    def __init__(self, message: str, column: str) -> None:
        super().__init__(message)
        self.column = column


class DeadLetter(Item):
    """The item that is enqueued in the place of a row. Another item of the same topic is an ordinary row."""

    __slots__ = ()


def refused_column(error: FoqsError) -> str | None:
    """Return the column whose value a host refused; None if the error names none."""
    name = (error.field or "").rpartition(".")[2]
    name = _FIELD_COLUMNS.get(name, name)
    return name if name in COLUMNS else None


def is_fault_of_row(error: FoqsError) -> bool:
    """Return whether another row could be accepted in the place of the refused one."""
    if isinstance(error, KeyConflict):
        return True
    column = refused_column(error)
    if isinstance(error, LimitExceeded):
        # The limit of a topic is the namespace's topics_max: many rows would be refused for it, with nothing wrong.
        return column is not None and column != "topic"
    return isinstance(error, InvalidArgument) and column is not None


class RowErrors:
    """Decides what happens to rows that cannot be items, and counts them.

    Args:
        on_error: the treatment of such rows.
        topic: the topic of dead letters.

    Attributes:
        skipped_count: the number of skipped rows.
        dead_letter_count: the number of rows that became dead letters.
        reasons: the first few reasons.
    """

    def __init__(self, on_error: OnError, topic: str) -> None:
        self.on_error = on_error
        self.skipped_count = 0
        self.dead_letter_count = 0
        self.reasons: list[str] = []
        self._topic = topic

    def malformed(self, row: Mapping[str, Any], error: MalformedRow) -> DeadLetter | None:
        """Return the dead letter of a row; None if the row is skipped. Raises the error if `on_error` is FAIL.

        Only the dead letter of a row with its own idempotency key has a key.

        Args:
            row: the values of the row by column.
            error: what is wrong with it.
        """
        if self.on_error is OnError.FAIL:
            raise error
        found = self._replacement(row, str(error), error.column)
        own_key = row.get("idempotency_key")
        # A key that is not UTF-8 is its bytes, and names no row.
        return _with_key(found, own_key, row) if found is not None and isinstance(own_key, str) else found

    def refused(self, namespace: str, item: Item, error: FoqsError, reason: str) -> DeadLetter | None:
        """Return the dead letter of an item that a host refused; None if it is skipped.

        The dead letter of a dead letter whose payload was too large is the same with a shorter one.

        Args:
            namespace: the namespace of the item.
            item: the item, with its key.
            error: the refusal.
            reason: the sentence for the user.

        Raises:
            SinkError: `on_error` is FAIL, another row would be refused too, or a dead letter cannot be shortened.
        """
        if self.on_error is OnError.FAIL or not is_fault_of_row(error):
            raise SinkError(reason)
        if isinstance(item, DeadLetter):
            if refused_column(error) == "payload" and len(item.payload) > CUT_PAYLOAD_BYTES:
                return _with_shorter_payload(item)
            raise SinkError(f"a dead letter cannot be enqueued; correct the option dead_letter_topic: {reason}")
        row = {
            "topic": item.topic,
            "payload": item.payload,
            "priority": item.priority,
            "metadata": item.metadata,
            "deliver_after": item.deliver_after_ms,
            "ttl": item.ttl_ms,
            "lease": item.lease_ms,
            "idempotency_key": item.idempotency_key,
            "namespace": namespace,
            "trace_context": item.trace_context,
            "item_group": item.group,
        }
        found = self._replacement(row, reason, refused_column(error))
        return None if found is None else _with_key(found, item.idempotency_key or "", row)

    def _replacement(self, row: Mapping[str, Any], reason: str, column: str | None) -> DeadLetter | None:
        if len(self.reasons) < REASONS_MAX:
            self.reasons.append(reason)
        if self.on_error is OnError.SKIP:
            self.skipped_count += 1
            return None
        self.dead_letter_count += 1
        payload: bytes = row.get("payload") or b""
        notes: dict[str, Any] = {"reason": reason[:REASON_LENGTH_MAX]}
        if column == "payload" or len(payload) > VALUE_BYTES_MAX:
            notes["payload_bytes"] = len(payload)
            payload = payload[:CUT_PAYLOAD_BYTES]
        return DeadLetter(self._topic, payload, metadata=_metadata(notes, row))


def row_content(row: Mapping[str, Any]) -> bytes:
    """Return all values of a row except its trace, which may be another in each attempt. Different rows differ."""
    values = [row.get(name) for name in COLUMNS if name not in ("trace_context", "item_group")]
    group = row.get("item_group")
    # A row without a group has the content that an earlier version gives it: its key is the same.
    return ascii(values if group is None else [*values, group]).encode()


def _metadata(notes: dict[str, Any], row: Mapping[str, Any]) -> bytes:
    """Return the notes and as many fields of the row as there is room for, as JSON."""
    while len(found := _json(notes)) > METADATA_BYTES_MAX:
        notes["reason"] = notes["reason"][: len(notes["reason"]) // 2]
    for name in COLUMNS:
        value = row.get(name)
        if name == "payload" or value is None or value in (b"", ""):
            continue
        if isinstance(value, bytes):
            value = value[:METADATA_BYTES_MAX].decode(errors="replace")
        longer = _json({**notes, name: value})
        if len(longer) <= METADATA_BYTES_MAX:
            notes[name] = value
            found = longer
    return found


def _json(notes: Mapping[str, Any]) -> bytes:
    return json.dumps(notes, ensure_ascii=False).encode(errors="replace")


def _with_shorter_payload(dead_letter: DeadLetter) -> DeadLetter:
    """Return the dead letter with a shorter payload and the same key."""
    row = json.loads(dead_letter.metadata)
    notes = {"reason": row["reason"], "payload_bytes": len(dead_letter.payload)}
    return replace(dead_letter, payload=dead_letter.payload[:CUT_PAYLOAD_BYTES], metadata=_metadata(notes, row))


def _with_key(dead_letter: DeadLetter, own_key: str, row: Mapping[str, Any]) -> DeadLetter:
    """Return the dead letter with a key in the key slot of the row's own key, so that both items belong to one call."""
    content = urlsafe_b64encode(blake2b(row_content(row), digest_size=18).digest()).decode()
    return replace(dead_letter, idempotency_key=f"~{key_slot_of(own_key.encode(errors='replace')):03x}dead{content}")
