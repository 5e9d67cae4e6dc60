"""Tests of the parsers of durations, topics with counts, and leases."""

from __future__ import annotations

import click
import pytest

from foqs.cli.values import parse_leases, parse_topic_counts
from foqs.runtime.durations import format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "ms"),
    [("0", 0), ("250ms", 250), ("5s", 5_000), ("1.5s", 1_500), ("2m", 120_000), ("1h", 3_600_000), ("3d", 259_200_000)],
)
def test_a_duration_has_a_number_and_a_unit(text: str, ms: int) -> None:
    assert parse_duration(text) == ms


@pytest.mark.parametrize(
    "text", ["", "5", "s", "-5s", "5 s", "5S", "1h30m", "1e3s", "٣s", "5s\n", "9" * 13 + "d", ".5s"]
)
def test_other_text_is_not_a_duration(text: str) -> None:
    with pytest.raises(ValueError, match="250ms, 5s, 2m, 1h or 3d"):
        parse_duration(text)


def test_wants_are_topics_with_counts() -> None:
    assert parse_topic_counts(["mail", "sms=5", "a=b", "a=1=2"]) == {"mail": 1, "sms": 5, "a=b": 1, "a=1": 2}


@pytest.mark.parametrize("texts", [["mail=0"], ["=5"], [""], ["mail", "mail=2"], ["mail=99999999999"]])
def test_wrong_count_is_a_usage_error(texts: list[str]) -> None:
    with pytest.raises(click.UsageError):
        parse_topic_counts(texts)


def test_leases_are_a_pair_or_joined_pairs() -> None:
    assert parse_leases(["2-7", "9"]) == [("2-7", 9)]
    assert parse_leases(["2-7:9"]) == [("2-7", 9)]
    assert parse_leases(["2-7:9", "3-8:10"]) == [("2-7", 9), ("3-8", 10)]


@pytest.mark.parametrize(
    "texts",
    [["2-7"], ["2-7", "x"], ["2-7", "9", "3-8"], ["2-7:"], [":9"], ["2-7:-9"], ["2-7", "9" * 30], ["2-7:9", "8"]],
)
def test_a_wrong_lease_is_a_usage_error(texts: list[str]) -> None:
    with pytest.raises(click.UsageError, match="ID TOKEN"):
        parse_leases(texts)


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (None, "-"),
        (0, "0ms"),
        (999, "999ms"),
        (1_000, "1.0s"),
        (90_000, "1.5m"),
        (5_400_000, "1.5h"),
        (129_600_000, "1.5d"),
    ],
)
def test_durations_are_shown_short(ms: int | None, text: str) -> None:
    assert format_duration(ms) == text
