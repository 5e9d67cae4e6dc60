"""Errors of Spark become one sentence."""

from __future__ import annotations

import pytest

from foqs_client.spark.pipelines.error_sentence import error_sentence

TRACEBACK = """
An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "worker.py", line 7, in main
    process()
"""


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (f"{TRACEBACK}foqs_client.spark.job_error.SourceError: no host answers\n\nJVM stacktrace:\n at x", "no host answers"),
        (f"{TRACEBACK}foqs_client.errors.NotFound: gone\n at java.lang", "foqs_client.errors.NotFound: gone"),
        ("[UNRESOLVED_COLUMN] no column `x`.; line 1 pos 0;\n'Filter ('x = 1)", "[UNRESOLVED_COLUMN] no column `x`.; line 1 pos 0;"),
        ("", "RuntimeError"),
    ],
)  # fmt: skip
def test_sentence_is_found_between_traceback_and_plan(text: str, sentence: str) -> None:
    assert error_sentence(RuntimeError(text)) == sentence
