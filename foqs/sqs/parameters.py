"""The parameters of an action: a JSON object whose members are read with their types and limits.

Always true: a value that was read has its type and is within SQS' limit, else an error
with SQS' text was raised; a document that would take much memory is refused before it
is built. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from foqs.sqs.errors import SqsError, invalid_parameter, invalid_value, missing_parameter
from foqs.sqs.message_attributes import has_forbidden_char

BATCH_ENTRIES_MAX: Final = 10
VISIBILITY_TIMEOUT_S_MAX: Final = 43_200
DELAY_S_MAX: Final = 900
WAIT_S_MAX: Final = 20
RECEIVE_MAX: Final = 10

_STRUCTURE_MAX: Final = 20_000
"""The most brackets, braces and commas outside of texts; a full batch has about 500."""
_QUOTES_MAX: Final = 4 * _STRUCTURE_MAX + 2
"""The most quotes: JSON with `_STRUCTURE_MAX` brackets, braces and commas has fewer."""
_NUMBER_CHARS_MAX: Final = 64
_STRUCTURE_CHECKED_BYTES: Final = 65_536
_TEXT: Final = re.compile(rb'"[^"]*"?')
"""A text without escapes, also one without an end: no byte is searched twice, however a body is made."""
_ENTRY_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,80}", re.ASCII)


@dataclass(slots=True, frozen=True)
class Parameters:
    """The members of one JSON object; null is the same as missing."""

    members: Mapping[str, Any]

    def value(self, name: str) -> Any:
        return self.members.get(name)

    def text(self, name: str) -> str | None:
        """Return a text member. Raises `SqsError`."""
        value = self.members.get(name)
        if value is not None and not isinstance(value, str):
            raise _wrong_type(name, "a text")
        return value

    def required_text(self, name: str) -> str:
        """Return a text member that must not be missing. Raises `SqsError`."""
        value = self.text(name)
        if value is None:
            raise missing_parameter(name)
        return value

    def integer(self, name: str) -> int | None:
        """Return an integer member. Raises `SqsError`."""
        value = self.members.get(name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise _wrong_type(name, "a whole number")
        return value

    def integer_in(self, name: str, low: int, high: int, reason: str) -> int | None:
        """Return an integer member within [low, high]. Raises `SqsError` with SQS' reason."""
        value = self.integer(name)
        if value is not None and not low <= value <= high:
            raise invalid_parameter(value, name, reason)
        return value

    def texts(self, name: str) -> list[str] | None:
        """Return a member that is a list of texts. Raises `SqsError`."""
        value = self.members.get(name)
        if value is not None and not (isinstance(value, list) and all(isinstance(entry, str) for entry in value)):
            raise _wrong_type(name, "a list of texts")
        return value

    def text_map(self, name: str) -> dict[str, str] | None:
        """Return a member that is an object of texts. Raises `SqsError`."""
        value = self.members.get(name)
        if value is not None and not (
            isinstance(value, dict) and all(isinstance(entry, str) for entry in value.values())
        ):
            raise _wrong_type(name, "an object of texts")
        if value and any(has_forbidden_char(text) for pair in value.items() for text in pair):
            raise invalid_value(f"Invalid characters found in {name}.")
        return value

    # --------------------------------------------------- members of several actions

    def visibility_timeout(self, *, is_required: bool = False) -> int | None:
        """Return VisibilityTimeout in seconds. Raises `SqsError`."""
        if is_required and self.value("VisibilityTimeout") is None:
            raise missing_parameter("VisibilityTimeout")
        return self.integer_in(
            "VisibilityTimeout",
            0,
            VISIBILITY_TIMEOUT_S_MAX,
            f"VisibilityTimeout must be an integer between 0 and {VISIBILITY_TIMEOUT_S_MAX}.",
        )

    def delay_s(self) -> int | None:
        """Return DelaySeconds. Raises `SqsError`."""
        return self.integer_in("DelaySeconds", 0, DELAY_S_MAX, f"DelaySeconds must be >= 0 and <= {DELAY_S_MAX}.")

    def entries(self, entry_kind: str) -> list[tuple[str, Parameters]]:
        """Return the (id, members) of a batch. Raises `SqsError` if the batch as a whole is wrong."""
        raw = self.members.get("Entries")
        if raw is not None and not isinstance(raw, list):
            raise _wrong_type("Entries", "a list")
        if not raw:
            raise SqsError("EmptyBatchRequest", f"There should be at least one {entry_kind} in the request.")
        if len(raw) > BATCH_ENTRIES_MAX:
            raise SqsError(
                "TooManyEntriesInBatchRequest",
                f"Maximum number of entries per request are {BATCH_ENTRIES_MAX}. You have sent {len(raw)}.",
            )
        if not all(isinstance(entry, dict) for entry in raw):
            raise _wrong_type("Entries", "a list of objects")
        entries = [(entry.required_text("Id"), entry) for entry in map(Parameters, raw)]
        _check_entry_ids([entry_id for entry_id, _ in entries])
        return entries


def _check_entry_ids(ids: Sequence[str]) -> None:
    seen: set[str] = set()
    for entry_id in ids:
        if not _ENTRY_ID.fullmatch(entry_id):
            raise SqsError(
                "InvalidBatchEntryId",
                "A batch entry id can only contain alphanumeric characters, hyphens and underscores. "
                "It can be at most 80 letters long.",
            )
        if entry_id in seen:
            raise SqsError("BatchEntryIdsNotDistinct", f"Id {entry_id} repeated.")
        seen.add(entry_id)


def page_size(parameters: Parameters) -> int | None:
    """Return MaxResults of a list. Raises `SqsError`."""
    return parameters.integer_in("MaxResults", 1, 1_000, "Value must be between 1 and 1000.")


def check_attribute_names(names: Collection[str], known: Collection[str]) -> None:
    """Check the names that a caller asks for. Raises `SqsError`."""
    for name in names:
        if name != "All" and name not in known:
            raise SqsError("InvalidAttributeName", f"Unknown Attribute {name}.")


# ------------------------------------------------------------------------- JSON


def parse_body(body: bytes) -> Parameters:
    """Return the members of a request's body; an empty body has none. Raises `SqsError`."""
    if not body:
        return Parameters({})
    if len(body) > _STRUCTURE_CHECKED_BYTES and _structure_count(body) > _STRUCTURE_MAX:
        raise _malformed("It has too many members and elements; send fewer in a request.")
    try:
        members = json.loads(
            body.decode(),
            object_pairs_hook=_object_of_pairs,
            parse_constant=_refuse_constant,
            parse_float=_read_float,
            parse_int=_read_integer,
        )
    except UnicodeDecodeError:
        raise _malformed("It is not UTF-8.") from None
    except (ValueError, RecursionError):
        raise _malformed("It is not JSON.") from None
    if not isinstance(members, dict):
        raise _malformed("It is not an object.")
    return Parameters(members)


def _structure_count(body: bytes) -> int:
    """Return the number of brackets, braces and commas outside of texts, or a larger one if there are too many texts."""
    unescaped = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    if unescaped.count(b'"') > _QUOTES_MAX:  # a search for millions of texts takes long
        return len(unescaped)
    outside = _TEXT.sub(b"", unescaped)
    return sum(outside.count(char) for char in (b"[", b"{", b","))


def _object_of_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise _malformed("A member appears twice.")
    return members


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(text)


def _read_float(text: str) -> float:
    _check_number_length(text)
    return float(text)


def _read_integer(text: str) -> int:
    _check_number_length(text)
    return int(text)


def _check_number_length(text: str) -> None:
    """Refuse a number that takes long to read. Raises ValueError."""
    if len(text) > _NUMBER_CHARS_MAX:
        raise ValueError(text)


def _malformed(problem: str) -> SqsError:
    return SqsError("SerializationException", f"The request body cannot be read. {problem}")


def _wrong_type(name: str, kind: str) -> SqsError:
    return SqsError("SerializationException", f"{name} must be {kind}.")


def check_text(text: str, name: str, chars_max: int) -> str:
    """Check the length of an optional identifier, such as MessageGroupId. Raises `SqsError`."""
    if not 1 <= len(text) <= chars_max or not all("!" <= char <= "~" for char in text):
        raise invalid_value(
            f"Value {text} for parameter {name} is invalid. Reason: {name} can only include alphanumeric "
            f"and punctuation characters. 1 to {chars_max} in length."
        )
    return text
