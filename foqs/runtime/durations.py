"""Durations as people write and read them: `250ms`, `5.0s`, `2.0m`."""

from __future__ import annotations

import re
from typing import Final

UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION: Final = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)(ms|s|m|h|d)", re.ASCII)


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
