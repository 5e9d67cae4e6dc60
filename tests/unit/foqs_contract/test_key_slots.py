"""Tests the slots of keys."""

from __future__ import annotations

from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs_contract.key_slots import (
    GROUP_PREFIX_BYTES,
    group_prefix,
    group_slot_of,
    key_slot_of,
    key_slots_of,
    restore_key,
    topic_prefix,
    without_group_prefix,
)

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=9).map(str.encode)


@pytest.mark.parametrize(("key", "slot"), [(b"~000", 0), (b"~3ff", 1_023), (b"~0a7and so on", 0x0A7)])
def test_a_key_may_name_its_slot(key: bytes, slot: int) -> None:
    assert key_slot_of(key) == slot


@pytest.mark.parametrize("key", [b"k", b"~", b"~00", b"~400", b"~fff", b"~0A7", b"~ 12", b"~+12", b"~0x1", b"a~001"])
def test_the_slot_of_any_other_key_comes_from_its_checksum(key: bytes) -> None:
    assert key_slot_of(key) == crc32(key) % 1_024


@given(st.lists(st.one_of(st.binary(max_size=6), st.sampled_from([b"~00", b"~001", b"~001-2", b"~0zz", b"~0zz1"]))))
def test_the_slots_of_many_keys_are_the_slots_of_each_key(keys: list[bytes]) -> None:
    assert list(key_slots_of(keys)) == [key_slot_of(key) for key in keys]


def test_the_slot_of_a_group_is_that_of_the_contract() -> None:
    assert group_slot_of(b"default", b"customer 7") == crc32(b"default\0customer 7") % 1_024
    assert len({group_slot_of(b"default", b"%d" % number) for number in range(20_000)}) == 1_024


@given(NAMES, NAMES, NAMES | NAMES.map(restore_key) | st.just(b"~001"))
def test_a_key_in_a_group_is_in_the_slot_of_the_group_and_is_found_again(
    namespace: bytes, group: bytes, key: bytes
) -> None:
    stored = group_prefix(namespace, group) + key
    assert key_slot_of(stored) == group_slot_of(namespace, group)
    assert list(key_slots_of([stored, key])) == [group_slot_of(namespace, group), key_slot_of(key)]
    assert (without_group_prefix(stored), without_group_prefix(key)) == (key, key)
    assert len(stored) == len(key) + GROUP_PREFIX_BYTES


@given(NAMES, NAMES, NAMES, NAMES)
def test_keys_of_two_groups_differ(one: bytes, other: bytes, key: bytes, second: bytes) -> None:
    same = group_prefix(b"n", one) + key == group_prefix(b"n", other) + second
    assert same is ((one, key) == (other, second))


@given(NAMES, NAMES, NAMES, NAMES)
def test_keys_of_topics_of_shared_keys_are_in_the_slot_of_the_namespace_and_differ_from_those_of_groups(
    namespace: bytes, topic: bytes, other: bytes, key: bytes
) -> None:
    stored = topic_prefix(namespace, topic) + key
    assert key_slot_of(stored) == key_slot_of(topic_prefix(namespace, other)) == group_slot_of(namespace, b"")
    assert without_group_prefix(stored) == key
    assert (stored == topic_prefix(namespace, other) + key) is (topic == other)
    assert not stored.startswith((group_prefix(namespace, topic), group_prefix(namespace, other)))
