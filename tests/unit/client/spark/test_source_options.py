"""Tests the options of a read, its columns, pushed filters and its rate."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from foqs_client.spark import item_reader
from foqs_client.spark.item_reader import Pacer, read_pages
from foqs_client.spark.item_view_columns import BATCH_COLUMNS, view_values
from foqs_client.spark.job_error import SourceError
from foqs_client.spark.pushed_filters import Comparison, narrowed
from foqs_client.spark.source_options import SOURCE_NUMBERS, SOURCE_OPTION_NAMES, SourceOptions
from foqs_client.types import ItemFilter, ItemPage, ItemView

URL = "foqs://one:1,two"


def parse(**given: str) -> SourceOptions:
    return SourceOptions.parse({"url": URL, **given})


def test_missing_options_have_their_defaults() -> None:
    options = parse()
    assert (options.namespace, options.only, options.payload, options.rows_per_second) == (
        "default", ItemFilter(), False, None,
    )  # fmt: skip
    assert {name: getattr(options, name) for name in SOURCE_NUMBERS} == {
        name: each.default for name, each in SOURCE_NUMBERS.items()
    }
    assert "payload" not in options.columns


def test_options_make_one_filter() -> None:
    options = parse(
        topics="mail, sms,mail",
        states="dead,ready",
        priority_min="-5",
        priority_max="7",
        age_min_ms="1",
        age_max_ms="2",
    )
    assert options.only == ItemFilter(None, ("dead", "ready"), -5, 7, 1, 2, ("mail", "sms"))
    assert list(parse(payload="true", details="TRUE").columns) == list(BATCH_COLUMNS)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"url": ""}, "name the hosts"),
        ({"url": "http://one"}, "the option url is not an address"),
        ({"path": "/tmp"}, "a queue has no path: end the read with .load() alone"),
        ({"rowspersecond": "5"}, "unknown options: rowspersecond (write rows_per_second); known are url, token,"),
        ({"rows_per_second": "0"}, "the option rows_per_second is '0'; it must be a whole number from 1 to"),
        ({"states": "dead,asleep"}, "the option states is 'dead,asleep'; it must be some of deferred, ready,"),
        ({"topics": "a,,b"}, "the option topics is 'a,,b'; it must be names, separated by commas"),
        ({"topics": ",".join(map(str, range(1_001)))}, "the option topics has 1001 topics; give at most 1000"),
        ({"payload": "yes"}, "the option payload is 'yes'; it must be true or false"),
        ({"priority_min": "2", "priority_max": "1"}, "the option priority_min is greater than priority_max"),
        ({"token": "x", "token_file": "y"}, "give the option token or token_file, not both"),
    ],
)
def test_wrong_option_is_refused_with_one_sentence(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(SourceError) as raised:
        SourceOptions.parse({"url": URL, **given})
    assert str(raised.value).startswith(sentence)


def test_token_is_in_no_text_of_the_options() -> None:
    assert "secret" not in repr(parse(token="secret"))
    assert len(set(SOURCE_OPTION_NAMES)) == len(SOURCE_OPTION_NAMES)


def test_moments_follow_from_the_time_of_the_shard() -> None:
    view = ItemView(
        "12-345", "mail", "leased", -1, b"p", None, True, 2, 3, 30_000, 1_500, None, 250, 60_000, 1, "k", None
    )
    values = dict(zip(BATCH_COLUMNS, view_values([view], 1_000_000, list(BATCH_COLUMNS)), strict=True))
    assert {name: column[0] for name, column in values.items()} == {
        "id": "12-345", "shard": 12, "topic": "mail", "state": "leased", "priority": -1, "attempt": 2,
        "enqueued_at": 998_500_000, "due_at": None, "lease_until": 1_000_250_000, "age": 1_500, "payload_bytes": 1,
        "metadata": b"", "dead_reason": None, "payload": b"p", "idempotency_key": "k", "ttl_remaining": 60_000,
        "lease": 30_000, "attempts_max": 3, "at_most_once": True, "trace_context": None, "item_group": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("comparisons", "expected"),
    [
        ([], ItemFilter()),
        ([Comparison("EqualTo", "topic", "a")], ItemFilter(topics=("a",))),
        ([Comparison("In", "topic", ["a", "b"]), Comparison("EqualTo", "topic", "b")], ItemFilter(topics=("b",))),
        ([Comparison("In", "topic", ["a"]), Comparison("EqualTo", "topic", "b")], ItemFilter(topics=())),
        ([Comparison("In", "topic", ["a", None])], ItemFilter(topics=("a",))),
        ([Comparison("In", "state", ["dead", "x"])], ItemFilter(states=("dead",))),
        ([Comparison("GreaterThan", "priority", 3)], ItemFilter(priority_min=4, priority_max=2**31 - 1)),
        (
            [Comparison("GreaterThanOrEqual", "priority", 3), Comparison("LessThan", "priority", 9)],
            ItemFilter(priority_min=3, priority_max=8),
        ),
        ([Comparison("EqualTo", "priority", 3)], ItemFilter(priority_min=3, priority_max=3)),
        ([Comparison("GreaterThan", "priority", 2**31 - 1)], ItemFilter(topics=())),
        ([Comparison("StringContains", "topic", "a"), Comparison("EqualTo", "age", 5)], ItemFilter()),
    ],
)
def test_comparisons_narrow_the_filter(comparisons: list[Comparison], expected: ItemFilter) -> None:
    assert narrowed(ItemFilter(), comparisons) == expected


def test_comparison_never_widens_the_options() -> None:
    only = ItemFilter(topics=("a", "b"), states=("dead",), priority_min=0, priority_max=5)
    found = narrowed(
        only,
        [
            Comparison("In", "topic", ["b", "c"]),
            Comparison("In", "state", ["dead", "ready"]),
            Comparison("GreaterThan", "priority", -9),
        ],
    )
    assert found == ItemFilter(topics=("b",), states=("dead",), priority_min=0, priority_max=5)


class Time:
    """A clock that only sleep moves, and whoever sets it."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.mark.parametrize(("rate", "rows"), [(10_000, 500), (50, 5), (3, 1)])
def test_rate_is_kept_by_pages_of_a_tenth_of_a_second(rate: int, rows: int) -> None:
    time = Time()
    pacer = Pacer(rate, time.clock, time.sleep)
    assert pacer.page_rows(500) == rows
    for _ in range(100):
        pacer.wait_after(rows)
    assert time.now_s - 100 == pytest.approx(100 * rows / rate)


def test_read_that_was_held_up_catches_up_by_a_second_at_most() -> None:
    time = Time()
    pacer = Pacer(100, time.clock, time.sleep)
    time.now_s += 60
    for _ in range(20):
        pacer.wait_after(10)
    assert time.now_s - 160 == pytest.approx(1)


def test_read_without_a_rate_does_not_wait() -> None:
    time = Time()
    pacer = Pacer(None, time.clock, time.sleep)
    pacer.wait_after(1_000_000)
    assert (pacer.page_rows(500), time.now_s) == (500, 100)


class Shard:
    """Answers the calls of a read. `rows` are the rows that they asked for."""

    def __init__(self, *pages: ItemPage) -> None:
        self._pages = list(pages)
        self.rows: list[int] = []

    def list_items(self, shard: int, only: ItemFilter, rows: int, cursor: str | None, **how: Any) -> ItemPage:
        self.rows.append(rows)
        return self._pages.pop(0)


def test_page_without_a_match_costs_the_read_as_much_time_as_a_full_one(monkeypatch: pytest.MonkeyPatch) -> None:
    time, shard = Time(), Shard(*[ItemPage([], "more")] * 20, ItemPage([], None))
    monkeypatch.setattr(item_reader, "make_client", lambda *given: nullcontext(shard))
    monkeypatch.setattr(item_reader, "Pacer", lambda rate: Pacer(rate, time.clock, time.sleep))
    assert list(read_pages(SourceOptions(URL, rows_per_second=1_000), [0])) == []
    assert shard.rows == [100] * 21
    assert time.now_s - 100 == pytest.approx(20 * 0.1)
