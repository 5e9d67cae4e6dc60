"""Tests of the sentences in which a command reports an error of a call."""

from __future__ import annotations

import pytest

from foqs.cli.host_session import error_sentence
from foqs_client import Overloaded, Unavailable, Unreachable


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        (
            "no connection to a:7411: connection refused; is the host running there?",
            "no connection to a:7411: connection refused; is the host running there? "
            "Start one with: foqs dev, or name another with --address.",
        ),
        (
            "no connection to a:7411: it speaks TLS; begin its address with foqss://",
            "no connection to a:7411: it speaks TLS; begin its address with foqss://",
        ),
        (
            "no reply came in time; nothing was changed, so the call can be repeated",
            "no reply came in time; nothing was changed, so the call can be repeated",
        ),
    ],
)
def test_only_a_host_that_does_not_answer_is_to_be_started(message: str, sentence: str) -> None:
    assert error_sentence(Unreachable(message)) == sentence


def test_pause_before_the_next_try_is_said_once() -> None:
    closing = Unavailable("shard 3 is closing; try again", retry_after_ms=50)
    assert error_sentence(closing) == "UNAVAILABLE: shard 3 is closing; try again in 50 ms."
    crowded = Overloaded("the host has too many calls", retry_after_ms=50)
    assert error_sentence(crowded) == "OVERLOADED: the host has too many calls. Try again in 50 ms."
