"""The sentence of an error that Spark reports.

Holds `error_sentence`. Pure.
"""

from __future__ import annotations

from typing import Final

_NAMED: Final = ("SourceError: ", "SinkError: ", "PipelineError: ")
"""The prefixes of the sentences of the source, the sink and the pipelines, which Spark writes after a traceback."""


def error_sentence(error: Exception) -> str:
    """Return the line that says what is wrong: Spark puts tracebacks before and plans after it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    for line in reversed(lines):
        for name in _NAMED:
            if name in line:
                return line.partition(name)[2]
    failures = [line for line in lines if line.startswith("foqs_client.")]
    return (failures[-1:] or lines[:1] or [type(error).__name__])[0]
