"""How the console shows payloads, numbers and names."""

from __future__ import annotations

from foqs.console.due_calendar import Calendar, Count, Interval
from foqs.console.formats import calendar_rows, drain, hexadecimal, number, payload, priority_rows, rate, sure, visible
from foqs.console.line import Line
from foqs.core.memory.topic_rates import Rates


def test_text_is_shown_as_text_and_other_bytes_as_hexadecimal() -> None:
    assert payload("grüße\n\tzwei".encode()) == "grüße\n\tzwei"
    assert payload(b"\x00\x01ab").startswith("00000000  00 01 61 62")
    assert payload(b"\x1b[31m").startswith("00000000  1b 5b")
    assert payload(b"") == payload(None) == ""


def test_a_long_payload_is_cut_and_says_so() -> None:
    shown = payload(b"x" * 70_000)
    assert shown.startswith("x" * 65_536)
    assert shown.endswith("... and 4,464 bytes more")
    cut_in_a_character = "ü" * 40_000
    assert payload(b"x" + cut_in_a_character.encode()).startswith("x" + "ü" * 32_767)
    assert payload(b"\xff" * 70_000).startswith("00000000  ff ff")


def test_hexadecimal_has_sixteen_bytes_in_a_line() -> None:
    first, second = hexadecimal(bytes(range(65, 85))).splitlines()
    assert first == "00000000  41 42 43 44 45 46 47 48 49 4a 4b 4c 4d 4e 4f 50  ABCDEFGHIJKLMNOP"
    assert second.startswith("00000010  51 52 53 54 ")
    assert second.endswith("  QRST")


def test_numbers_have_separators_and_names_no_control_characters() -> None:
    assert (number(1_234_567), number(None)) == ("1,234,567", "-")
    assert (visible("a\x1bb\n"), visible(None)) == ("a\\x1bb\\n", "-")


def test_a_count_has_its_sign_and_a_rate_one_decimal() -> None:
    assert [sure(Count(1_234)), sure(Count(5, "~")), sure(Count(7, "≥"))] == ["1,234", "~5", "≥7"]
    assert [rate(0.0), rate(0.04), rate(0.25), rate(12_345.67)] == ["0", "0", "0.2", "12,345.7"]


def test_the_end_of_a_backlog_is_said_with_its_date() -> None:
    now_s = 1_795_716_453.0  # 2026-11-26 18:07:33 UTC
    assert drain(0, Rates(0, 0), now_s) == "nothing to drain"
    assert drain(600, Rates(10, 10), now_s) == "not at these rates"
    assert drain(720, Rates(10, 11), now_s) == "~12.0m, at 2026-11-26 18:19 UTC"


def test_what_is_not_shown_by_name_is_a_row_without_a_bar() -> None:
    line = Line([(0, Count(10)), (5, Count(5, "≥"))], Count(100, "~"), [], is_whole=False)
    assert priority_rows(line) == [("0", Count(10), 100.0), ("5", Count(5, "≥"), 50.0), ("all others", (100, "~"), 0.0)]
    part = Interval(0, 1, "Thu 18:00")
    assert calendar_rows(Calendar([part], [Count(3)], Count(0), is_scanned=True)) == [("Thu 18:00", (3, ""), 100.0)]
