"""Calls of pipelines are repeated until hosts have room, and only then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from foqs_client import Enqueued, FoqsError, InvalidArgument, NotFound, Outcome, Overloaded, RateLimited
from foqs_client.spark.pipelines.item_actions import ItemAction, call_until_accepted, outcome_of

BUSY = Overloaded("busy", retry_after_ms=50)
LIMITED = RateLimited("too fast", retry_after_ms=2_000)


class Calls:
    """Answers one call after the other; `pauses` are the waits between them."""

    def __init__(self, *answers: Sequence[Any] | FoqsError) -> None:
        self._answers = list(answers)
        self.requested: list[list[str]] = []
        self.pauses: list[float] = []

    def __call__(self, entries: Sequence[str]) -> Sequence[Any]:
        self.requested.append(list(entries))
        answer = self._answers.pop(0)
        if isinstance(answer, FoqsError):
            raise answer
        return answer

    def run(self, *entries: str, timeout_s: float = 60.0) -> list[Any]:
        return call_until_accepted(entries, self, timeout_s, clock_s=lambda: sum(self.pauses), sleep=self.pauses.append)


def test_only_entries_without_room_are_sent_again_after_the_pause_that_hosts_ask_for() -> None:
    calls = Calls([Enqueued("1"), Enqueued(error=BUSY), Enqueued(error=LIMITED)], [Enqueued("2"), Enqueued("3")])
    assert calls.run("a", "b", "c") == [Enqueued("1"), Enqueued("2"), Enqueued("3")]
    assert calls.requested == [["a", "b", "c"], ["b", "c"]]
    assert calls.pauses == [2.0]


def test_refusal_that_does_not_pass_is_the_result_at_the_end_of_the_time() -> None:
    calls = Calls(*[[Enqueued(error=LIMITED)]] * 3)
    assert calls.run("a", timeout_s=5.0) == [Enqueued(error=LIMITED)]
    assert calls.pauses == [2.0, 2.0]


def test_whole_call_without_room_is_made_again_and_another_failure_ends_it() -> None:
    assert Calls(BUSY, [Outcome()]).run("a") == [Outcome()]
    with pytest.raises(InvalidArgument):
        Calls(InvalidArgument("wrong")).run("a")
    with pytest.raises(RateLimited):
        Calls(LIMITED, LIMITED).run("a", timeout_s=3.0)


def test_outcomes_have_names() -> None:
    assert [outcome_of(each)[0] for each in (Outcome(), Outcome(already_gone=True), Outcome(NotFound("x")))] == [
        "done",
        "gone",
        "NOT_FOUND",
    ]
    assert outcome_of(Enqueued("1", repeated=True))[0] == "repeated"


def test_actions_are_named_as_in_a_question() -> None:
    assert [str(ItemAction(*each)) for each in (("redrive",), ("move", "t"), ("priority", 3))] == [
        "redrive",
        "move to topic 't'",
        "give priority 3 to",
    ]
