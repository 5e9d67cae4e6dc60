"""Tests of text for terminals and logs."""

from __future__ import annotations

from foqs_contract.printable_text import printable


def test_nothing_in_a_name_can_move_the_cursor_or_begin_a_line() -> None:
    assert printable("a\x1b[2Jb\n\udcff.py\x9b2J\u202e") == "a\\x1b[2Jb\\n\\udcff.py\\x9b2J\\u202e"


def test_printable_text_of_any_script_stays() -> None:
    assert printable("naïve 東京 ~") == "naïve 東京 ~"
