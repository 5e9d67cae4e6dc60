"""Rewrites a configuration file to the present names of its options.

Always true: only names, and the values that a deprecation maps, change, and options that
have no effect go. Comments, order and layout stay. The new text means what the old one meant: it is parsed and compared
before it is returned. Unknown options stay as they are.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from foqs.options.config import find_field, suggest_key
from foqs.options.renames import find_deprecated, present_name

_HEADER: Final = re.compile(r"(\s*\[\s*)([\w-]+)([^\[\]]*\].*)", re.S)
_OPTION: Final = re.compile(r"(\s*)([\w-]+(?:\s*\.\s*[\w-]+)*)(\s*=\s*)(.*)", re.S)
_VALUE: Final = re.compile(r"""("[^"\\]*"|'[^']*'|[^\s#"']+)(.*)""", re.S)


class UpgradeRefused(Exception):
    """The file cannot be rewritten. The text says what to change by hand."""


@dataclass(slots=True, frozen=True)
class Upgrade:
    """The new text, and a line for each unknown option."""

    text: str
    unknown: tuple[str, ...]


def upgrade(text: str) -> Upgrade:
    """Return the text with present names.

    Raises:
        UpgradeRefused: it is not TOML, an option is set under two names, or its form is too unusual to rewrite.
    """
    try:
        wanted = _renamed(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise UpgradeRefused(f"the file is not TOML ({error}); correct that line") from None
    new_text = "".join(_rewrite(text))
    try:
        found = tomllib.loads(new_text)
    except tomllib.TOMLDecodeError as error:
        raise UpgradeRefused(
            f"the file would not be TOML any more ({error}); write each section once, as [section], and rename it by hand"
        ) from None
    if _without_empty(found) != _without_empty(wanted):
        raise UpgradeRefused(
            "the form of the file cannot be rewritten; write one option a line, below [section], and try again"
        )
    return Upgrade(new_text, tuple(_unknown(found)))


def _new_key(key: tuple[str, ...]) -> tuple[str, ...]:
    entry = find_deprecated(key)
    name = entry.new if entry else None if find_field(key) else present_name(key)
    if name is None and key:
        name = ".".join((present_name(key[:1]) or key[0], *key[1:]))
    return tuple(name.split(".")) if name else key


def _renamed(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parsed file with the present names of its sections and options."""
    found: dict[str, Any] = {}
    for section, options in raw.items():
        if not isinstance(options, dict):
            _put(found, _new_key((section,)), options)
            continue
        _put(found, _new_key((section,)), {})
        for name, value in options.items():
            entry = find_deprecated((section, name))
            if entry is not None and entry.new is None:
                continue
            _put(found, _new_key((section, name)), entry.new_value(value) if entry else value)
    return found


def _put(found: dict[str, Any], key: tuple[str, ...], value: Any) -> None:
    for part in key[:-1]:
        found = found.setdefault(part, {})
    if value == {}:
        found.setdefault(key[-1], {})
    elif found.get(key[-1], {}) != {}:
        raise UpgradeRefused(f"{'.'.join(key)} is set under its old and its new name; remove one of them")
    else:
        found[key[-1]] = value


def _without_empty(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {section: options for section, options in raw.items() if options != {}}


def _rewrite(text: str) -> Iterator[str]:
    """Yield the new lines. A line that moves to another section comes directly below its header."""
    old_section, section = "", ""
    lines: list[str] = []
    headers: dict[str, int] = {}
    moved: dict[str, list[str]] = {}
    for line in text.splitlines(keepends=True):
        if header := _HEADER.fullmatch(line):
            start, old_section, rest = header.groups()
            section = _new_key((old_section,))[0]
            lines.append(f"{start}{section}{rest}")
            if rest.lstrip().startswith("."):
                old_section = ""  # options of a table by name, such as [auth.principals.mailer]: none was renamed
            else:
                headers[section] = len(lines) - 1
        elif option := _OPTION.fullmatch(line):
            lines += _rewrite_option(option, old_section, section, moved)
        else:
            lines.append(line)
    below = {headers[name]: moved.pop(name) for name in list(moved) if name in headers}
    for number, line in enumerate(lines):
        yield line if number not in below or line.endswith("\n") else f"{line}\n"
        yield from below.get(number, ())
    for name, fresh in moved.items():
        yield f"\n[{name}]\n"
        yield from fresh


def _rewrite_option(
    option: re.Match[str], old_section: str, section: str, moved: dict[str, list[str]]
) -> Iterator[str]:
    indent, dotted, equals, value = option.groups()
    names = tuple(part.strip() for part in dotted.split("."))
    old = (old_section, *names) if old_section else names
    if section and not old_section:
        yield option.string
        return
    entry = find_deprecated(old)
    if entry is not None and entry.new is None:
        return
    new = _new_key(old)
    if new == old:
        yield option.string
        return
    if entry is not None and entry.convert is not None:
        value = _convert(value, entry.new_value)
    if not old_section:
        yield f"{indent}{'.'.join(new)}{equals}{value}"
    elif new[0] == section:
        yield f"{indent}{'.'.join(new[1:])}{equals}{value}"
    else:
        end = "" if value.endswith("\n") else "\n"
        moved.setdefault(new[0], []).append(f"{'.'.join(new[1:])}{equals}{value}{end}")


def _convert(text: str, new_value: Any) -> str:
    """Return the value's text converted, with the comment behind it; as it is where its form is unusual."""
    found = _VALUE.fullmatch(text)
    if found is None:
        return text
    value, rest = found.groups()
    try:
        new = new_value(tomllib.loads(f"value = {value}")["value"])
    except tomllib.TOMLDecodeError:
        return text
    if isinstance(new, bool):
        return f"{str(new).lower()}{rest}"
    return f"{new}{rest}" if isinstance(new, int) else f"'{new}'{rest}"


def _unknown(raw: Mapping[str, Any]) -> Iterator[str]:
    for section, options in raw.items():
        if not isinstance(options, dict):
            yield f"{section}: there is no such option; {suggest_key((section,))}"
            continue
        for name, value in options.items():
            keys: list[tuple[str, ...]] = [(section, name)]
            if section == "databases" and isinstance(value, dict):
                keys = [(section, name, inner) for inner in value]
            elif (section, name) == ("auth", "principals") and isinstance(value, dict):
                keys = [
                    (section, name, principal, inner)
                    for principal, inners in value.items()
                    if isinstance(inners, dict)
                    for inner in inners
                ]
            for key in keys:
                if find_field(key) is None:
                    yield f"{'.'.join(key)}: there is no such option; {suggest_key(key)}"
