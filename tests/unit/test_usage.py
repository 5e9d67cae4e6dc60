"""Items and bytes of each namespace."""

from __future__ import annotations

from foqs.core.usage import Usage
from tests.support.builders import row


def test_rows_of_several_namespaces_count_for_their_own() -> None:
    usage = Usage()
    rows = [row(1, payload_bytes=5), row(2, namespace="other", payload_bytes=70), row(3, payload_bytes=600)]
    usage.entered(rows)
    assert usage.least("default") == (2, 605)
    assert usage.least("other") == (1, 70)
    usage.left(rows[:2])
    assert usage.least("default") == (1, 600)
    assert usage.least("other") == (0, 0)


def test_what_was_there_before_is_added_when_it_is_found() -> None:
    usage = Usage()
    usage.left([row(1, payload_bytes=5)])
    assert usage.least("default") == (0, 0)
    usage.entered([row(2, payload_bytes=7)])
    usage.found([("default", 1, 5), ("default", 2, 20)])
    assert usage.least("default") == (3, 27)


def test_what_is_counted_anew_replaces_what_was_counted() -> None:
    usage = Usage()
    usage.entered([row(1, payload_bytes=5)])
    usage.begin_anew()
    usage.found([("default", 1, 5)])
    assert usage.least("default") == (1, 5)


def test_a_namespace_without_items_is_forgotten() -> None:
    usage = Usage()
    usage.entered([row(1)])
    usage.left([row(1)])
    assert usage._held == {}
