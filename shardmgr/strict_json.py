"""Parses JSON strictly: objects whose fields are read by name.

Always true: a value has its type and is in its range; a field that is unknown,
missing or duplicate raises `MalformedDocument`, which names the place. Knows nothing
of the meaning of fields.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn, TypeVar

from shardmgr.model import MalformedDocument

T = TypeVar("T")

NAME_BYTES_MAX: Final = 255
_SHOWN_CHARS_MAX: Final = 60


class JsonObject:
    """One object, and its path in the document.

    Args:
        known: the fields that it may have.

    Raises:
        MalformedDocument: it is not an object, or has another field.
    """

    __slots__ = ("_path", "_raw")

    def __init__(self, raw: Any, path: str, known: tuple[str, ...]) -> None:
        self._raw = parse_object_of(raw, path, known)
        self._path = path

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """Return an integer from `low` to `high`."""
        return integer_parser(low, high)(self._get(key, default), _join_path(self._path, key))

    def real(self, key: str, high: float, default: float) -> float:
        """Return a number from 0 to `high`."""
        value = self._get(key, default)
        if type(value) not in (int, float) or not 0 <= value <= high:
            raise_malformed(
                _join_path(self._path, key), f"this must be a number from 0 to {high:g}, not {abbreviate(value)}"
            )
        return float(value)

    def boolean(self, key: str) -> bool:
        """Return true or false; false if the field is missing."""
        value = self._get(key, False)
        if type(value) is not bool:
            raise_malformed(_join_path(self._path, key), f"this must be true or false, not {abbreviate(value)}")
        return value

    def name(self, key: str, default: str | None = None, *, bytes_max: int = NAME_BYTES_MAX) -> str:
        """Return a name, as `parse_name`; the default may be any text."""
        value = self._get(key, default)
        return (
            value
            if value == default and default is not None
            else parse_name(value, _join_path(self._path, key), bytes_max)
        )

    def names(self, key: str) -> frozenset[str]:
        """Return a list of different names; empty if the field is missing."""
        path = _join_path(self._path, key)
        value = parse_list(self._get(key, []), path)
        found = frozenset(parse_name(name, f"{path}[{place}]") for place, name in enumerate(value))
        if len(found) < len(value):
            raise_malformed(path, "a name appears in it twice; name it once")
        return found

    def by_number(self, key: str, high: int, read: Callable[[Any, str], T]) -> dict[int, T]:
        """Return an object whose fields are named by integers from 0 to `high`; empty if the field is missing.

        Args:
            read: parses a value from its JSON and its path.
        """
        path = _join_path(self._path, key)
        return {
            parse_number_key(text, high, path): read(raw, _join_path(path, text))
            for text, raw in parse_object(self._get(key, {}), path).items()
        }

    def _get(self, key: str, default: Any) -> Any:
        value = self._raw.get(key, default)
        if value is None:
            raise_malformed(
                _join_path(self._path, key), "this is missing" if key not in self._raw else "this must not be null"
            )
        return value


def parse_json(text: bytes) -> Any:
    """Parse JSON. Raises `MalformedDocument`."""
    try:
        return json.loads(text.decode(), object_pairs_hook=_object_of_pairs, parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise_malformed(f"byte {error.start}", "this is not UTF-8")
    except json.JSONDecodeError as error:
        raise_malformed(f"line {error.lineno}, column {error.colno}", f"this is not JSON: {error.msg}")
    except (ValueError, RecursionError):
        raise_malformed("", "this is not JSON that can be read")


def parse_object(raw: Any, path: str) -> Mapping[str, Any]:
    """Return an object without duplicate fields. Raises `MalformedDocument`."""
    if isinstance(raw, _ObjectWithDuplicate):
        raise_malformed(path, f"{abbreviate(raw.name)} appears in it twice; name it once")
    if not isinstance(raw, dict):
        raise_malformed(path, f"this must be an object, not {abbreviate(raw)}")
    return raw


def parse_object_of(raw: Any, path: str, known: tuple[str, ...]) -> Mapping[str, Any]:
    """Return an object with known fields only. Raises `MalformedDocument`."""
    found = parse_object(raw, path)
    for key in found:
        if key not in known:
            raise_malformed(_join_path(path, key), f"there is no such field; there are {', '.join(known)}")
    return found


def parse_list(raw: Any, path: str) -> list[Any]:
    """Return a list. Raises `MalformedDocument`."""
    if not isinstance(raw, list):
        raise_malformed(path, f"this must be a list, not {abbreviate(raw)}")
    return raw


def parse_name(raw: Any, path: str, bytes_max: int = NAME_BYTES_MAX) -> str:
    """Return a printable name of 1 to `bytes_max` bytes. Raises `MalformedDocument`."""
    if not isinstance(raw, str) or not raw or not raw.isprintable() or len(raw.encode()) > bytes_max:
        raise_malformed(path, f"this must be a printable name of 1 to {bytes_max} bytes, not {abbreviate(raw)}")
    return raw


def integer_parser(low: int, high: int) -> Callable[[Any, str], int]:
    """Return a parser of integers from `low` to `high`, for `JsonObject.by_number`."""

    def read(raw: Any, path: str) -> int:
        if type(raw) is not int or not low <= raw <= high:
            raise_malformed(path, f"this must be a whole number from {low} to {high}, not {abbreviate(raw)}")
        return raw

    return read


def raise_malformed(path: str, problem: str) -> NoReturn:
    """Raise `MalformedDocument`."""
    raise MalformedDocument(path, problem)


def parse_number_key(text: str, high: int, path: str) -> int:
    """Return the number that names a field, from 0 to `high`, in its only form. Raises `MalformedDocument`."""
    if text.isascii() and text.isdigit() and len(text) <= len(str(high)):
        number = int(text)
        if number <= high and str(number) == text:
            return number
    raise_malformed(_join_path(path, text), f"this must be named by a whole number from 0 to {high}")


def abbreviate(raw: Any) -> str:
    """Return a value as an error shows it: shortened."""
    return _truncate(json.dumps(raw))


class _ObjectWithDuplicate(dict[str, Any]):
    """An object with a duplicate name."""

    name: str


def _object_of_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) == len(pairs):
        return table
    names = [key for key, _ in pairs]
    twice = _ObjectWithDuplicate(table)
    twice.name = next(key for key in names if names.count(key) > 1)
    return twice


def _refuse_constant(text: str) -> NoReturn:
    raise_malformed("", f"{text} is not a number of JSON")


def _join_path(path: str, key: str) -> str:
    part = (
        key
        if key.isidentifier() and key.isascii() and len(key) <= _SHOWN_CHARS_MAX
        else _truncate(json.dumps(key)[1:-1])
    )
    return f"{path}.{part}" if path else part


def _truncate(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS_MAX else text[:_SHOWN_CHARS_MAX] + "..."
