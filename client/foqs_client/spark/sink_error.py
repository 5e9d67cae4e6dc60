"""Why a write ends: one sentence for whoever runs the job.

Holds `SinkError`. Always true: its text says what is wrong, where, and what to
do; no secret stands in it. Knows nothing of Spark.
"""

from __future__ import annotations

from collections.abc import Iterable


class SinkError(Exception):
    """The write cannot go on."""


def comma_separated(names: Iterable[str]) -> str:
    """Names as they stand in a sentence: `a, b, c`."""
    return ", ".join(names)
