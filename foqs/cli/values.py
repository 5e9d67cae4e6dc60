"""Parses the values of the command line: durations, topics with counts, leases.

Always true: a value that cannot be parsed is a usage error that shows the right
form. Knows nothing of commands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import click

from foqs.runtime.durations import parse_duration

STATES: Final = ("ready", "leased", "deferred", "dead")
"""All states of an item."""
_COUNT_MAX: Final = 2**31 - 1
_TOKEN_MAX: Final = 2**63 - 1


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
    a count. Raises UsageError.
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
    """Return (id, token) pairs of `ID TOKEN`, or of any number of `ID:TOKEN`. Raises UsageError."""
    pairs = [(texts[0], texts[1])] if len(texts) == 2 and not any(":" in text for text in texts) else None
    if pairs is None:
        pairs = [(head, tail) for head, _, tail in (text.partition(":") for text in texts)]
    leases: list[tuple[str, int]] = []
    for name, token in pairs:
        if not name or not (token.isascii() and token.isdigit()) or int(token[:20]) > _TOKEN_MAX:
            raise click.UsageError("Give one ID TOKEN, or any number of ID:TOKEN, as foqs dequeue shows them.")
        leases.append((name, int(token)))
    return leases
