"""Parses JSON documents strictly, with pydantic, into forms: one class for each kind of object.

Always true: a value has its type and is in its range; a field that is unknown,
missing or duplicate raises `MalformedDocument`, which names the place. Knows nothing
of the meaning of fields.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any, Final, NamedTuple, NoReturn, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, PlainValidator, ValidationError
from pydantic_core import ErrorDetails

from shardmgr.model import MalformedDocument

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
"""What a value must be, by pydantic's type of error."""


class Form(BaseModel):
    """The fields of an object, their types and their ranges."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


F = TypeVar("F", bound=Form)


def parse_document(form: type[F], text: bytes, version: int) -> F:
    """Parse a document whose field `format` is `version`. Raises `MalformedDocument`."""
    raw = _parse_json(text)
    if isinstance(raw, dict):
        found = raw.pop("format", None)
        if found != version or type(found) is not int:
            problem = f"{abbreviate(found)} is not a format that this version reads; it reads {version}"
            raise MalformedDocument("format", problem)
    try:
        return form.model_validate(raw)
    except ValidationError as error:
        raise _malformed(error.errors(include_url=False)[0]) from None


# --------------------------------------------------------------------- types


def build(value: Callable[..., object]) -> AfterValidator:
    """Replace a form by the value that is constructed from its fields."""
    return AfterValidator(lambda form: value(**vars(form)))


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
    """Read the name of a field as a number from 0 to `high`, in its only form."""

    def read(text: str) -> int:
        if text.isascii() and text.isdigit() and len(text) <= len(str(high)):
            number = int(text)
            if number <= high and str(number) == text:
                return number
        raise ValueError(f"this must be named by a whole number from 0 to {high}")

    return PlainValidator(read)


def _check_distinct(names: list[str]) -> list[str]:
    if len(set(names)) < len(names):
        raise ValueError("a name appears in it twice; name it once")
    return names


Name = Annotated[str, printable()]
DistinctNames = Annotated[list[Name], AfterValidator(_check_distinct)]

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


class _DuplicateField(NamedTuple):
    """Stands for an object with a duplicate field. No form accepts it."""

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
        raise MalformedDocument("", "this is not JSON that can be read") from None


def _object_of_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any] | _DuplicateField:
    table = dict(pairs)
    if len(table) == len(pairs):
        return table
    names = [key for key, _ in pairs]
    return _DuplicateField(next(key for key in names if names.count(key) > 1))


def _refuse_constant(text: str) -> NoReturn:
    raise MalformedDocument("", f"{text} is not a number of JSON")
