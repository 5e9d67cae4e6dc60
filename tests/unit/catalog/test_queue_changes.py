"""Changes of queues in the catalog's document."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foqs.catalog import changes
from foqs.catalog.document import Document, QueueEntry, parse, render
from foqs.catalog.namespaces import Namespaces
from foqs.catalog.queue_changes import change_queue
from foqs.catalog.topic_keys import NO_TOPIC_KEYS
from foqs.options.options import NamespaceOptions
from foqs_contract.errors import LimitExceeded, NamespaceNotFound, Unavailable
from foqs_contract.key_slots import group_prefix, topic_prefix

ENTRY = QueueEntry({"DelaySeconds": "5"}, {"team": "mail"}, 1, 2)


def document() -> Document:
    return changes.new_catalog("default", 7)


def with_queue(name: str = "mail") -> Document:
    return change_queue(document(), "default", name, lambda _: ENTRY, 2)


def test_a_queue_is_created_changed_and_deleted() -> None:
    created = with_queue()
    assert created.version == 2
    assert created.namespaces["default"].queues == {"mail": ENTRY}
    changed = change_queue(created, "default", "mail", lambda entry: replace(entry or ENTRY, changed_at_s=9), 2)
    assert changed.namespaces["default"].queues["mail"].changed_at_s == 9
    deleted = change_queue(changed, "default", "mail", lambda _: None, 2)
    assert (deleted.version, deleted.namespaces["default"].queues) == (4, {})


def test_a_change_without_effect_keeps_the_document() -> None:
    created = with_queue()
    assert change_queue(created, "default", "mail", lambda entry: entry, 2) is created
    assert change_queue(created, "default", "other", lambda entry: entry, 2) is created


def test_a_namespace_has_a_bounded_number_of_queues() -> None:
    full = change_queue(with_queue(), "default", "two", lambda _: ENTRY, 2)
    with pytest.raises(LimitExceeded, match="has 2 queues already"):
        change_queue(full, "default", "three", lambda _: ENTRY, 2)
    assert change_queue(full, "default", "two", lambda _: QueueEntry(), 2).namespaces["default"].queues["two"] != ENTRY


def test_queues_belong_to_a_namespace_that_exists() -> None:
    with pytest.raises(NamespaceNotFound):
        change_queue(document(), "other", "mail", lambda _: ENTRY, 2)
    with pytest.raises(Unavailable):
        change_queue(changes.start_deletion(document(), "default"), "default", "mail", lambda _: ENTRY, 2)


def test_a_document_without_queues_is_read_as_before() -> None:
    text = render(document())
    assert "queues" not in text
    assert parse(text) == document()


def test_keys_of_a_queue_with_a_window_of_its_own_are_remembered_for_it_while_the_queue_exists() -> None:
    namespaces = Namespaces(NamespaceOptions(key_window_ms=600_000))
    own = replace(ENTRY, key_window_ms=300_000)

    def windows_after(changed: Document) -> list[int]:
        namespaces.apply(changed)
        return [namespaces.retry_policies["default"].key_window_ms_of(topic) for topic in ("mail", "other")]

    with_own = change_queue(with_queue(), "default", "mail", lambda _: own, 2)
    assert windows_after(with_own) == [300_000, 600_000]
    assert parse(render(with_own)) == with_own
    assert windows_after(changes.update(with_own, "default", None, {"key_window_ms": 900_000})) == [300_000, 900_000]
    assert windows_after(change_queue(with_own, "default", "mail", lambda _: None, 2)) == [600_000, 600_000]


def test_keys_of_a_queue_may_be_unique_among_all_groups_while_the_queue_exists() -> None:
    namespaces = Namespaces(NamespaceOptions())
    shared = change_queue(
        with_queue(), "default", "more", lambda _: replace(ENTRY, keys_in_topic=True, keys_alone=True), 2
    )
    assert parse(render(shared)) == shared
    namespaces.apply(shared)
    keys = namespaces.topic_keys_of("default")
    assert keys.shared == keys.alone == {"more"}
    assert [keys.prefix_of("default", topic, b"g") for topic in ("mail", "more")] == [
        group_prefix(b"default", b"g"),
        topic_prefix(b"default", b"more"),
    ]
    assert namespaces.topic_keys_of("absent") == NO_TOPIC_KEYS
    namespaces.apply(change_queue(shared, "default", "more", lambda _: None, 2))
    assert namespaces.topic_keys_of("default").shared == namespaces.topic_keys_of("default").alone == frozenset()


def test_queue_of_any_keys_leaves_the_settings_of_its_namespace_the_same_object() -> None:
    namespaces = Namespaces(NamespaceOptions())
    namespaces.apply(with_queue())
    settings = namespaces.settings_of("default")
    fifo = replace(ENTRY, key_window_ms=300_000, keys_in_topic=True, keys_alone=True, keys_since_ms=5, is_fair=True)
    with_fifo = change_queue(with_queue(), "default", "more", lambda _: fifo, 2)
    assert parse(render(with_fifo)) == with_fifo
    for document in (with_fifo, change_queue(with_fifo, "default", "more", lambda _: None, 2)):
        namespaces.apply(document)
        assert namespaces.is_current("default", settings)


def test_import_changes_the_attributes_of_a_queue_that_exists_and_not_its_keys() -> None:
    own = replace(ENTRY, key_window_ms=300_000, keys_in_topic=True, keys_alone=True, keys_since_ms=5)
    other = replace(ENTRY, attributes={"DelaySeconds": "7"}, keys_since_ms=3)
    present = change_queue(document(), "default", "mail", lambda _: own, 2)
    exported = change_queue(document(), "default", "mail", lambda _: other, 2)
    exported = change_queue(exported, "default", "more", lambda _: other, 2)
    restored = changes.restore(present, exported).namespaces["default"].queues
    assert restored == {"mail": replace(own, attributes={"DelaySeconds": "7"}), "more": other}
