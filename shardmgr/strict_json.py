"""Parses JSON documents strictly, with pydantic, into forms: one class for each kind of object.

Always true: a value has its type and is in its range; a field that is missing or
duplicate raises `MalformedDocument`, which names the place. An unknown field is
accepted, because a newer version may have written it: a value that is written back
keeps it. Knows nothing of the meaning of fields.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final, NoReturn, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, PlainValidator, ValidationError
from pydantic_core import ErrorDetails

from shardmgr.model import MalformedDocument, NewerDocument

NAME_BYTES_MAX: Final = 255
_SHOWN_CHARS_MAX: Final = 60
_KINDS: Final = {
    "model_type": "an object",
    "dict_type": "an object",
    "list_type": "a list",
    "frozen_set_type": "a list",
    "string_type": "a string",
    "string_unicode": "a string of Unicode",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
}
"""The kind that a value must have, for the error, by pydantic's type of error."""


class Form(BaseModel):
    """The fields of an object, their types and their ranges."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    @property
    def unknown(self) -> dict[str, Any]:
        """The fields that this version does not know, in the order of their names."""
        return dict(sorted((self.model_extra or {}).items()))


F = TypeVar("F", bound=Form)


def parse_document(
    form: type[F], text: bytes, version: int, *, allow_unknown: bool = True, newest: int | None = None
) -> F:
    """Parse a document whose field `format` is `version`, or up to `newest`. Raises `MalformedDocument`, or `NewerDocument`.

    Args:
        allow_unknown: accept fields that this version does not know.
    """
    raw = _parse_json(text)
    if isinstance(raw, dict):
        found = raw.pop("format", None)
        if type(found) is not int or not version <= found <= (newest or version):
            reads = version if newest is None else f"{version} to {newest}"
            problem = f"{abbreviate(found)} is not a format that this version reads; it reads {reads}"
            is_newer = type(found) is int and found > (newest or version)
            raise (NewerDocument if is_newer else MalformedDocument)("format", problem)
    try:
        parsed = form.model_validate(raw, extra="allow" if allow_unknown else "forbid")
    except ValidationError as error:
        raise _malformed(error.errors(include_url=False)[0]) from None
    _check_can_be_written(raw)
    return parsed


# --------------------------------------------------------------------- types


def build(value: Callable[..., object]) -> AfterValidator:
    """Replace a form by the value that is constructed from its fields. Unknown fields are ignored."""
    return AfterValidator(lambda form: value(**vars(form)))


def build_with_unknown(value: Callable[..., object]) -> AfterValidator:
    """Replace a form by the value that is constructed from its fields, and from the unknown ones as `unknown`."""
    return AfterValidator(lambda form: value(**vars(form), unknown=form.unknown))


def printable(bytes_max: int = NAME_BYTES_MAX, *, bytes_min: int = 1) -> AfterValidator:
    """Allow printable names only."""

    def check(text: str) -> str:
        if not text.isprintable() or not bytes_min <= len(text.encode()) <= bytes_max:
            raise ValueError(
                f"this must be a printable name of {bytes_min} to {bytes_max} bytes, not {abbreviate(text)}"
            )
        return text

    return AfterValidator(check)


def number_key(high: int) -> PlainValidator:
    """Read the name of a field as a number from 0 to `high`, in decimal digits without leading zeros."""

    def read(text: str) -> int:
        if text.isascii() and text.isdigit() and len(text) <= len(str(high)):
            number = int(text)
            if number <= high and str(number) == text:
                return number
        raise ValueError(f"the name of this must be a whole number from 0 to {high}, without leading zeros")

    return PlainValidator(read)


def _check_distinct(names: list[str]) -> list[str]:
    if len(set(names)) < len(names):
        raise ValueError("a name appears in it twice; name it once")
    return names


Name = Annotated[str, printable()]
DistinctNames = Annotated[list[Name], AfterValidator(_check_distinct)]


def _check_can_be_written(raw: Any) -> None:
    """Check that fields which no form knows can be written back. Raises `MalformedDocument`."""
    try:
        json.dumps(raw, ensure_ascii=False, allow_nan=False, default=_refuse_duplicate).encode()
    except ValueError as error:
        raise MalformedDocument("", f"a field that this version does not know cannot be kept: {error}") from None


def _refuse_duplicate(duplicate: _DuplicateField) -> NoReturn:
    raise ValueError(f"{abbreviate(duplicate.name)} appears in it twice; name it once")


# -------------------------------------------------------------------- errors


def abbreviate(raw: Any) -> str:
    """Return a value as an error shows it: shortened."""
    return _truncate(json.dumps(raw))


def _malformed(error: ErrorDetails) -> MalformedDocument:
    kind, raw, place = error["type"], error["input"], error["loc"]
    if kind == "value_error" and isinstance(raw, str) and place[-1:] == ("[key]",):
        place = (*place[:-2], raw)  # pydantic's own place does not keep a name that is not Unicode
    if isinstance(raw, _DuplicateField):
        problem = f"{abbreviate(raw.name)} appears in it twice; name it once"
    elif kind == "missing":
        problem = "this is missing"
    elif kind == "extra_forbidden":
        problem = "there is no such field"
    elif kind == "value_error":
        problem = str(error["ctx"]["error"])
    else:
        must = f"this must be {_KINDS[kind]}" if kind in _KINDS else error["msg"].replace("Input should", "this must")
        problem = f"{must}, not {abbreviate(raw)}"
    return MalformedDocument(_to_path(place), problem)


def _to_path(place: tuple[int | str, ...]) -> str:
    path = ""
    for step in place:
        if isinstance(step, int):
            path += f"[{step}]"
        else:
            is_plain = step.isidentifier() and step.isascii() and len(step) <= _SHOWN_CHARS_MAX
            path += "." * bool(path) + (step if is_plain else _truncate(json.dumps(step)[1:-1]))
    return path


def _truncate(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS_MAX else text[:_SHOWN_CHARS_MAX] + "..."


# ---------------------------------------------------------------------- JSON


@dataclass(slots=True, frozen=True)
class _DuplicateField:
    """Stands for an object with a duplicate field. No form accepts it, and it cannot be written."""

    name: str


def _parse_json(text: bytes) -> Any:
    try:
        return json.loads(text.decode(), object_pairs_hook=_object_of_pairs, parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise MalformedDocument(f"byte {error.start}", "this is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise MalformedDocument(
            f"line {error.lineno}, column {error.colno}", f"this is not JSON: {error.msg}"
        ) from None
    except (ValueError, RecursionError):
        raise MalformedDocument(
            "", "this is not JSON that can be read: it is nested too deeply, or has a number of too many digits"
        ) from None


def _object_of_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any] | _DuplicateField:
    table = dict(pairs)
    if len(table) == len(pairs):
        return table
    names = [key for key, _ in pairs]
    return _DuplicateField(next(key for key in names if names.count(key) > 1))


def _refuse_constant(text: str) -> NoReturn:
    raise MalformedDocument("", f"{text} is not a number of JSON")
