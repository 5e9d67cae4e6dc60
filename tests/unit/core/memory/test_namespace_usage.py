"""The items and bytes of each namespace."""

from __future__ import annotations

from foqs.core.memory.namespace_usage import NamespaceUsage
from tests.support.builders import row


def test_rows_of_several_namespaces_are_counted_separately() -> None:
    usage = NamespaceUsage()
    rows = [row(1, payload_bytes=5), row(2, namespace="other", payload_bytes=70), row(3, payload_bytes=600)]
    usage.on_rows_inserted(rows)
    assert usage.lower_bound("default") == (2, 605)
    assert usage.lower_bound("other") == (1, 70)
    usage.on_rows_deleted(rows[:2])
    assert usage.lower_bound("default") == (1, 600)
    assert usage.lower_bound("other") == (0, 0)


def test_the_initial_usage_is_added_to_the_changes() -> None:
    usage = NamespaceUsage()
    usage.on_rows_deleted([row(1, payload_bytes=5)])
    assert usage.lower_bound("default") == (0, 0)
    usage.on_rows_inserted([row(2, payload_bytes=7)])
    usage.add_initial([("default", 1, 5), ("default", 2, 20)])
    assert usage.lower_bound("default") == (3, 27)


def test_a_new_initial_count_replaces_the_former_one() -> None:
    usage = NamespaceUsage()
    usage.on_rows_inserted([row(1, payload_bytes=5)])
    usage.restart_initial()
    usage.add_initial([("default", 1, 5)])
    assert usage.lower_bound("default") == (1, 5)


def test_a_namespace_without_items_is_forgotten() -> None:
    usage = NamespaceUsage()
    usage.on_rows_inserted([row(1)])
    usage.on_rows_deleted([row(1)])
    assert usage._usage == {}
