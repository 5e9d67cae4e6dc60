"""Tests of the demo's ledger and proof: a correct run is proven, and every kind of loss or duplicate is found."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import cast

import pytest

from foqs.demo.file_work import FileResult
from foqs.demo.ledger import RunLedger, percentile_of
from foqs.demo.proof import (
    HostContents,
    check_run,
    counted_topics,
    counts_by_topic,
    dead_reason,
    describe_earlier_items,
)
from foqs.demo.run_files import FileEntry
from foqs_client import Client, ItemView, Topic, TopicPage
from tests.support.aio import run

GOOD = FileEntry("/good", "run/py", 10, "aa")
OTHER = FileEntry("/other", "run/py", 20, "bb")
BAD = FileEntry("/bad", "run/txt", 30, "cc", is_planted=True)


def result(checksum: str) -> FileResult:
    return FileResult(checksum, 5, 0.5, None)


def view(id: str, attempt: int = 3, metadata: bytes = b'{"reason": "rotten"}') -> ItemView:
    return ItemView(
        id, "run/txt", "dead", 0, None, metadata, False, attempt, 3, None, None, None, None, None, None, None, None
    )


def topic(name: str, ready: int = 0, deferred: int = 0, leased: int = 0, dead: int = 0) -> Topic:
    return Topic(name, ready, deferred, leased, dead, None, None, None, False, False)


def ledger() -> RunLedger:
    """Three files, enqueued at 0 and 10, two acked and one given up."""
    book = RunLedger()
    book.enqueue_started([GOOD, OTHER], 0.0)
    book.enqueued([GOOD, OTHER], ["0-1", "0-2"])
    book.enqueue_started([BAD], 10.0)
    book.enqueued([BAD], ["0-3"])
    book.complete_at = 11.0
    book.delivered("/good", "0-1", 2.0)
    book.delivered("/other", "0-2", 3.0)
    for attempt in (1, 2, 3):
        book.delivered("/bad", "0-3", 10.0 + attempt)
        book.nacked("/bad", "rotten", attempt == 3, 10.5 + attempt)
    book.acked("/good", result("aa"), 4.0)
    book.acked("/other", result("bb"), 7.0)
    return book


def left() -> HostContents:
    return HostContents([topic("run/txt", dead=1)], {"0-3": view("0-3")})


def test_earlier_items_are_counted_in_every_state_once_the_host_has_counted_them() -> None:
    class Host:
        """Has taken its shards over, and counts its items while the first list is read."""

        lists = 0

        async def topics(self, **_: object) -> TopicPage:
            self.lists += 1
            lagging = replace(topic("a"), counts_lag=True)
            return TopicPage([lagging] if self.lists == 1 else [topic("a", deferred=2, leased=1), topic("b")], None)

    async def main() -> str:
        return describe_earlier_items(await counted_topics(cast(Client, Host())))

    assert run(main()) == "2 deferred, 1 leased in 1 topic"


def test_topics_without_items_are_not_shown_as_earlier_ones() -> None:
    assert describe_earlier_items([topic("a")]) == describe_earlier_items([]) == ""
    assert (
        describe_earlier_items([replace(topic("a", ready=1_000), counts_lag=True)]) == "at least 1,000 ready in 1 topic"
    )


def failed(book: RunLedger, rest: HostContents) -> list[int]:
    """Which checks fail, by their place."""
    return [place for place, check in enumerate(check_run(book, rest)) if not check.ok]


def test_a_run_in_order_is_proven() -> None:
    assert failed(ledger(), left()) == []


def test_a_lost_item_is_found() -> None:
    book = ledger()
    del book.acks["/good"]
    assert failed(book, left()) == [1]
    assert "1 lost, such as '/good'" in check_run(book, left())[1].sentence


def test_item_that_was_acked_twice_is_found() -> None:
    book = ledger()
    book.acked("/good", result("aa"), 9.0)
    assert failed(book, left()) == [1]


def test_an_item_both_acked_and_dead_is_found() -> None:
    rest = left()
    rest.dead["0-1"] = view("0-1")
    assert failed(ledger(), rest) == [1]


def test_a_wrong_checksum_is_found() -> None:
    book = ledger()
    book.checksums["/good"] = "ff"
    assert failed(book, left()) == [2]


def test_a_delivery_under_a_foreign_id_is_found() -> None:
    book = ledger()
    book.delivered("/good", "0-9", 9.0)
    assert failed(book, left()) == [0]


def test_an_id_that_names_two_items_is_found() -> None:
    book = ledger()
    book.ids["/other"] = "0-1"
    book.delivered_ids["/other"] = {"0-1"}
    assert failed(book, left()) == [0]


def test_an_enqueue_without_an_id_is_found() -> None:
    book = ledger()
    del book.ids["/good"]
    assert 0 in failed(book, left())


def test_a_planted_file_that_was_processed_is_found() -> None:
    book = ledger()
    book.acked("/bad", result("cc"), 20.0)
    assert failed(book, HostContents([], {})) == [3]


def test_a_planted_file_given_up_too_early_is_found() -> None:
    assert failed(ledger(), HostContents(left().topics, {"0-3": view("0-3", attempt=2)})) == [3]


@pytest.mark.parametrize("state", ["ready", "deferred", "leased"])
def test_item_still_held_by_the_host_is_found(state: str) -> None:
    rest = left()
    rest.topics[0] = topic("run/txt", dead=1, **{state: 1})
    assert failed(ledger(), rest) == [4]


def test_a_dead_item_that_nobody_enqueued_is_found_unless_it_was_refused() -> None:
    book, rest = ledger(), left()
    rest.dead["0-77"] = view("0-77")
    assert failed(book, rest) == [4]
    book.foreign_items = 1
    assert failed(book, rest) == []


def test_the_reason_of_a_death_is_read_from_the_metadata() -> None:
    assert dead_reason(view("0-3", metadata=json.dumps({"reason": "rotten"}).encode())) == "rotten"
    for metadata in (b"", b"\xff", b"[]", b"{}"):
        assert dead_reason(view("0-3", metadata=metadata)) == "its leases ended without an ack"


def test_a_ledger_is_finished_when_all_is_enqueued_and_settled() -> None:
    book = ledger()
    assert (book.is_finished, book.settled_count, book.deliveries, book.retries) == (True, 3, 5, 2)
    book.complete_at = None
    assert not book.is_finished
    book.complete_at = 11.0
    book.enqueue_started([FileEntry("/more", "run/py", 1, "dd")], 12.0)
    assert not book.is_finished


def test_latencies_count_from_the_enqueue_call_to_the_first_delivery() -> None:
    book = ledger()
    assert book.latencies(book.delivered_at) == [1.0, 2.0, 3.0]
    assert book.latencies(book.acked_at) == [4.0, 7.0]
    assert book.work_latencies() == [2.0, 4.0]
    assert book.elapsed_s == 7.0


def test_counts_by_topic_add_up() -> None:
    counts = counts_by_topic(ledger())
    assert counts["run/py"] == {"items": 2, "bytes": 30, "acked": 2}
    assert counts["run/txt"] == {"items": 1, "bytes": 30, "acked": 0}


@pytest.mark.parametrize(("share", "value"), [(0.0, 1.0), (0.5, 5.0), (0.9, 9.0), (0.91, 10.0), (1.0, 10.0)])
def test_percentiles_are_values_that_occurred(share: float, value: float) -> None:
    assert percentile_of([float(number) for number in range(1, 11)], share) == value
    assert percentile_of([], share) == 0.0
