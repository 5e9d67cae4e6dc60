"""Parses the values of the command line: durations, topics with counts, leases.

Always true: a value that cannot be parsed is a usage error that shows the right
form. Knows nothing of commands.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import click

UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION: Final = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)(ms|s|m|h|d)", re.ASCII)
STATES: Final = ("ready", "leased", "deferred", "dead")
"""All states of an item."""
_COUNT_MAX: Final = 2**31 - 1
_TOKEN_MAX: Final = 2**63 - 1


def parse_duration(text: str) -> int:
    """Return the milliseconds of `250ms`, `5s`, `1.5m`, `1h`, `3d` or `0`.

    Raises:
        ValueError: the text is none of these.
    """
    if text == "0":
        return 0
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a duration; write a number and a unit: 250ms, 5s, 2m, 1h or 3d")
    return round(float(match[1]) * UNITS_MS[match[2]])


class Duration(click.ParamType["int"]):
    """The click type of a duration: text to milliseconds."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return parse_duration(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


DURATION: Final = Duration()


def parse_topic_counts(texts: Sequence[str]) -> dict[str, int]:
    """Return {topic: count} of `TOPIC` (one item) and `TOPIC=COUNT`.

    The count follows the last `=`; a topic whose name ends in `=` and digits needs
    a count.
    """
    wants: dict[str, int] = {}
    for text in texts:
        topic, equals, tail = text.rpartition("=")
        counted = bool(equals) and tail.isascii() and tail.isdigit()
        name, count = (topic, int(tail)) if counted else (text, 1)
        if not name or not 0 < count <= _COUNT_MAX:
            raise click.UsageError(f"{text!r} is not TOPIC or TOPIC=COUNT with a count of at least 1, such as mail=10.")
        if name in wants:
            raise click.UsageError(f"The topic {name!r} appears twice; name it once, with one count.")
        wants[name] = count
    return wants


def parse_leases(texts: Sequence[str]) -> list[tuple[str, int]]:
    """Return (id, token) pairs of `ID TOKEN`, or of any number of `ID:TOKEN`."""
    pairs = [(texts[0], texts[1])] if len(texts) == 2 and not any(":" in text for text in texts) else None
    if pairs is None:
        pairs = [(head, tail) for head, _, tail in (text.partition(":") for text in texts)]
    leases: list[tuple[str, int]] = []
    for name, token in pairs:
        if not name or not (token.isascii() and token.isdigit()) or int(token[:20]) > _TOKEN_MAX:
            raise click.UsageError("Give one ID TOKEN, or any number of ID:TOKEN, as foqs dequeue shows them.")
        leases.append((name, int(token)))
    return leases


def format_duration(ms: int | None) -> str:
    """Return a short duration for a person: `250ms`, `5.0s`, `2.0m`; a dash for None."""
    if ms is None:
        return "-"
    if abs(ms) < UNITS_MS["s"]:
        return f"{ms}ms"
    for unit, above in (("s", "m"), ("m", "h"), ("h", "d")):
        if abs(ms) < UNITS_MS[above]:
            return f"{ms / UNITS_MS[unit]:.1f}{unit}"
    return f"{ms / UNITS_MS['d']:.1f}d"
