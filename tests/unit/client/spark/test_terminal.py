"""Tests of the lines that a pipeline prints."""

from __future__ import annotations

import pytest

from foqs_client.spark.pipelines.terminal import say


def test_topic_of_an_item_cannot_forge_a_line_or_move_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    topic = "\x1b]0;forged\x07\x1b[1A\x1b[2K         1  mail\n1 items match."
    say(f"  {1:>10,}  {topic}")
    [line] = capsys.readouterr().err.splitlines()
    assert line.isprintable()
