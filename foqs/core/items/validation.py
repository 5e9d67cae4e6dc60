"""Checks of the values in a request. Most of them return the value that they were given.

Holds the rules for names, sizes, numbers and times. Always true: a value that
passed needs no further check; a failed check says what is wrong and what to do,
and names the field relative to its struct (the caller adds the path). Pure; knows
nothing of Thrift, of the settings of namespaces, or of the use of the values.
"""

from __future__ import annotations

from typing import Final

from foqs.core.items.item import TIME_MS_MAX, TRACE_CONTEXT_BYTES_MAX
from foqs_contract.errors import InvalidArgument, LimitExceeded
from foqs_contract.key_slots import GROUP_PREFIX_BYTES
from foqs_contract.size_ceilings import METADATA_BYTES_CEILING, PAYLOAD_BYTES_CEILING

_BYTES_CEILINGS: Final = {"payload": PAYLOAD_BYTES_CEILING, "metadata": METADATA_BYTES_CEILING}
"""What no namespace can allow more of, by field."""
NAME_BYTES_MAX: Final = 255
KEY_IN_GROUP_BYTES_MAX: Final = NAME_BYTES_MAX - GROUP_PREFIX_BYTES
"""The most bytes of the idempotency key of an item with a group."""
CURSOR_BYTES_MAX: Final = 4_096


class MalformedRequest(InvalidArgument):
    """The request has bytes that no correct client sends, for any input of its user."""


def decode_text(raw: bytes, bytes_max: int, field: str) -> str:
    """Decode strict UTF-8 of at most `bytes_max` bytes.

    Raises:
        MalformedRequest: not UTF-8.
        InvalidArgument: too long.
    """
    if len(raw) > bytes_max:
        raise InvalidArgument(f"this has {len(raw)} bytes; at most {bytes_max} are allowed; shorten it", field=field)
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise MalformedRequest(f"this is not UTF-8: {error.reason} at byte {error.start}", field=field) from None


def decode_name(raw: bytes | None, field: str) -> str:
    """Decode a name: 1 to 255 bytes of UTF-8 without NUL, not normalized.

    Raises:
        MalformedRequest: not UTF-8.
        InvalidArgument: missing, empty, too long, or it contains NUL.
    """
    if not raw:
        what = "missing" if raw is None else "empty"
        raise InvalidArgument(f"this is {what}; give 1 to {NAME_BYTES_MAX} bytes of UTF-8", field=field)
    if 0 in raw:
        raise InvalidArgument("a name must not contain NUL; remove it", field=field)
    return decode_text(raw, NAME_BYTES_MAX, field)


def check_idempotency_key(raw: bytes) -> bytes:
    """Check the field `idempotency_key`: 1 to 255 bytes of UTF-8 without NUL, not normalized.

    Raises:
        MalformedRequest: not UTF-8.
        InvalidArgument: empty, too long, or it contains NUL.
    """
    if not (raw and len(raw) <= NAME_BYTES_MAX and raw.isascii() and 0 not in raw):
        decode_name(raw, "idempotency_key")
    return raw


def check_group(raw: bytes) -> bytes:
    """Check the field `group`: 1 to 255 bytes of UTF-8 without NUL, not normalized.

    Raises:
        MalformedRequest: not UTF-8.
        InvalidArgument: empty, too long, or it contains NUL.
    """
    decode_name(raw, "group")
    return raw


def check_key_in_group(key: bytes) -> bytes:
    """Check the length of the idempotency key of an item with a group: the record names the group, too.

    Raises:
        InvalidArgument: it is too long.
    """
    if len(key) > KEY_IN_GROUP_BYTES_MAX:
        raise InvalidArgument(
            f"this has {len(key)} bytes; with a group, at most {KEY_IN_GROUP_BYTES_MAX} are allowed; shorten it, or leave out "
            "group",
            field="idempotency_key",
        )
    return key


def check_number(value: int | None, minimum: int, maximum: int, field: str) -> int:
    """Check that an integer is in [minimum, maximum].

    Raises:
        InvalidArgument: missing or too small.
        LimitExceeded: too large.
    """
    if value is None:
        raise InvalidArgument(f"this is missing; give a number from {minimum} to {maximum}", field=field)
    if value < minimum:
        raise InvalidArgument(f"{value} is too small; the minimum is {minimum}", field=field)
    if value > maximum:
        raise LimitExceeded(f"{value} is too large; the maximum is {maximum}", field=field)
    return value


def check_size(data: bytes, bytes_max: int, field: str) -> bytes:
    """Check that `data` has at most `bytes_max` bytes, which the namespace's setting `<field>_bytes_max` allows.

    Raises:
        LimitExceeded: there are more.
    """
    if len(data) > bytes_max:
        remedy = "make it smaller"
        if len(data) <= _BYTES_CEILINGS[field]:
            remedy += f", or let an administrator raise the limit: foqs namespace update NAME --{field}-bytes-max N"
        raise LimitExceeded(f"this has {len(data)} bytes; the namespace allows {bytes_max}; {remedy}", field=field)
    return data


def check_trace_context(data: bytes) -> bytes:
    """Check the field `trace_context`: at most `TRACE_CONTEXT_BYTES_MAX` bytes.

    Raises:
        InvalidArgument: there are more.
    """
    if len(data) > TRACE_CONTEXT_BYTES_MAX:
        raise InvalidArgument(
            f"this has {len(data)} bytes; at most {TRACE_CONTEXT_BYTES_MAX} are allowed; shorten it",
            field="trace_context",
        )
    return data


def check_entry_count(count: int | None, maximum: int, field: str) -> int:
    """Check that a list has 1 to `maximum` entries; a count of None means that the list is missing.

    Raises:
        InvalidArgument: missing or empty.
        LimitExceeded: too long.
    """
    if not count:
        what = "missing" if count is None else "empty"
        raise InvalidArgument(f"this is {what}; give 1 to {maximum} entries", field=field)
    if count > maximum:
        raise LimitExceeded(f"this has {count} entries; one call may have at most {maximum}", field=field)
    return count


def check_delivery_time(delay_ms: int | None, deliver_after_ms: int | None) -> None:
    """Check the fields `delay_ms` and `deliver_after_ms`, of which at most one may be given.

    A moment in the past is allowed and means now.

    Raises:
        InvalidArgument: both are given, or one is out of range.
    """
    if delay_ms is not None:
        if deliver_after_ms is not None:
            raise InvalidArgument("give either delay_ms or deliver_after_ms, not both", field="delay_ms")
        if not 0 <= delay_ms <= TIME_MS_MAX:
            raise InvalidArgument(f"{delay_ms} ms is outside 0 to {TIME_MS_MAX}", field="delay_ms")
    elif deliver_after_ms is not None and deliver_after_ms > TIME_MS_MAX:
        raise InvalidArgument(
            f"{deliver_after_ms} is after the year 9999; give milliseconds since 1970-01-01 UTC",
            field="deliver_after_ms",
        )


def check_ttl(ttl_ms: int, delay_ms: int | None) -> int:
    """Check that the field `ttl_ms` is longer than the delay.

    Raises:
        InvalidArgument: out of range, or it ends before the item can be delivered.
    """
    if not 1 <= ttl_ms <= TIME_MS_MAX:
        raise InvalidArgument(f"{ttl_ms} ms is outside 1 to {TIME_MS_MAX}", field="ttl_ms")
    if delay_ms is not None and ttl_ms <= delay_ms:
        raise InvalidArgument(
            f"an item delayed by {delay_ms} ms would expire after {ttl_ms} ms, before it could be delivered; "
            "give a longer ttl_ms",
            field="ttl_ms",
        )
    return ttl_ms


def check_ttl_outlasts_delivery(ttl_ms: int, deliver_after_ms: int, now_ms: int) -> None:
    """Check that the field `ttl_ms` ends after `deliver_after_ms`.

    Raises:
        InvalidArgument: it ends before the item can be delivered.
    """
    if now_ms + ttl_ms <= deliver_after_ms:
        raise InvalidArgument(
            f"an item that is delivered after {deliver_after_ms - now_ms} ms would expire after {ttl_ms} ms, before it "
            "could be delivered; give a longer ttl_ms, or an earlier deliver_after_ms",
            field="ttl_ms",
        )
