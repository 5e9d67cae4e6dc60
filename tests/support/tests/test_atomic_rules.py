"""The rules for atomic calls find what they are for, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.support.atomic_rules import broken_calls
from tests.support.history import UNKNOWN, Event, History, read
from tests.support.item_histories import sort_by_item

Results = Sequence[Event] | str
"""The results of a call, or the code of its failure."""


def problems(*calls: tuple[str, Results], present: str = "") -> list[str]:
    """Judge atomic calls of items whose marks are single letters. Items of `present` are in the tables at the end."""
    history = History(lambda: 0.0)
    for marks, results in calls:
        call = history.invoke("p", "enqueue", [{"mark": mark} for mark in marks], atomic=True)
        if isinstance(results, str):
            history.fail(call, results)
        else:
            history.ok(call, results)
    history.present([{"id": f"1-{mark}", "mark": mark} for mark in present])
    return [problem for _, problem in broken_calls(sort_by_item(read(history.events)))]


def ids(marks: str, repeated: bool = False) -> list[Event]:
    return [{"id": f"1-{mark}", "repeated": repeated} for mark in marks]


@pytest.mark.parametrize(
    ("calls", "present"),
    [
        ([("ab", ids("ab"))], ""),
        ([("ab", UNKNOWN)], ""),
        ([("ab", UNKNOWN)], "ab"),
        ([("ab", UNKNOWN), ("ab", ids("ab", True)), ("cd", ids("cd")), ("ac", ids("ac", True))], ""),
        ([("ab", ids("ab")), ("ax", "KEY_CONFLICT")], "ab"),
        ([("ab", "RATE_LIMITED")], ""),
    ],
)
def test_calls_that_were_written_as_a_whole_or_not_at_all_break_no_rule(
    calls: list[tuple[str, Results]], present: str
) -> None:
    assert problems(*calls, present=present) == []


@pytest.mark.parametrize(
    ("calls", "present", "problem"),
    [
        ([("ab", UNKNOWN)], "a", "do all items exist"),
        ([("ab", ids("ab")), ("ax", "UNAVAILABLE")], "abx", "do all items exist"),
        ([("ab", [*ids("a"), *ids("b", True)])], "", "different kinds"),
        ([("ab", [*ids("a"), {"error": "KEY_CONFLICT"}])], "", "different kinds"),
        ([("ab", UNKNOWN), ("ab", "KEY_CONFLICT")], "", "used for its own items only"),
    ],
)
def test_a_call_that_was_written_in_part_is_found(calls: list[tuple[str, Results]], present: str, problem: str) -> None:
    assert any(problem in found for found in problems(*calls, present=present))
