"""Tests the slots of keys."""

from __future__ import annotations

from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs_contract.key_slots import key_slot_of, key_slots_of


@pytest.mark.parametrize(("key", "slot"), [(b"~000", 0), (b"~3ff", 1_023), (b"~0a7and so on", 0x0A7)])
def test_a_key_may_name_its_slot(key: bytes, slot: int) -> None:
    assert key_slot_of(key) == slot


@pytest.mark.parametrize("key", [b"k", b"~", b"~00", b"~400", b"~fff", b"~0A7", b"~ 12", b"~+12", b"~0x1", b"a~001"])
def test_the_slot_of_any_other_key_comes_from_its_checksum(key: bytes) -> None:
    assert key_slot_of(key) == crc32(key) % 1_024


@given(st.lists(st.one_of(st.binary(max_size=6), st.sampled_from([b"~00", b"~001", b"~001-2", b"~0zz", b"~0zz1"]))))
def test_the_slots_of_many_keys_are_the_slots_of_each_key(keys: list[bytes]) -> None:
    assert list(key_slots_of(keys)) == [key_slot_of(key) for key in keys]
