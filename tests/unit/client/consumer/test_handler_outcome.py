"""Tests the outcomes of handlers: whatever a handler raises, a call can send the outcome."""

from __future__ import annotations

from typing import Any

import pytest

from foqs_client.consumer.handler_outcome import OutcomeKind, outcome_of
from foqs_client.consumer.job import Dead, Retry
from foqs_client.safe_text import TEXT_CHARACTERS_MAX

FILE_NAME = "caf\udce9.txt"
"""What `os.listdir` returns for a name in Latin-1."""


class Unreadable(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class WithoutValues(Retry):
    def __init__(self) -> None:
        Exception.__init__(self, "again")


def changed(error: Any, **values: Any) -> Any:
    """Return the exception with attributes that its constructor refuses."""
    vars(error).update(values)
    return error


@pytest.mark.parametrize(
    ("reason", "metadata"),
    [
        (f"cannot read {FILE_NAME}", b"cannot read caf\\udce9.txt"),
        (42, b"42"),
        (ValueError("no such file"), b"no such file"),
        (Unreadable(), b"(its text cannot be read: ValueError)"),
        (None, None),
        ("", None),
    ],
)
def test_item_is_dead_whatever_the_reason_is(reason: object, metadata: bytes | None) -> None:
    outcome = outcome_of(Dead(reason), b"")
    assert (outcome.kind, outcome.metadata) == (OutcomeKind.DEAD, metadata)
    assert outcome.error


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError(FILE_NAME), "ValueError: caf\\udce9.txt"),
        (Unreadable(), "Unreadable: (its text cannot be read: ValueError)"),
        (SystemExit(3), "SystemExit: 3"),
        (WithoutValues(), "AttributeError: 'WithoutValues' object has no attribute 'delay_ms'"),
    ],
)
def test_any_other_exception_retries_the_item_with_a_text(error: BaseException, text: str) -> None:
    outcome = outcome_of(error, b"")
    assert (outcome.kind, outcome.error, outcome.metadata) == (OutcomeKind.RETRIED, text, b"failed: " + text.encode())


@pytest.mark.parametrize("values", [{"delay_ms": 1.5}, {"delay_ms": "soon"}, {"delay_ms": 2**70}, {"metadata": "text"}])
def test_values_that_a_call_cannot_send_are_not_used(values: dict[str, Any]) -> None:
    outcome = outcome_of(changed(Retry(100, b"m"), **values), b"")
    assert (outcome.kind, outcome.delay_ms) == (OutcomeKind.RETRIED, None)
    assert outcome.error is not None
    assert next(iter(values)) in outcome.error


def test_long_text_is_cut() -> None:
    outcome = outcome_of(ValueError("x" * 100_000), b"")
    assert outcome.error is not None
    assert len(outcome.error) < TEXT_CHARACTERS_MAX + 20
