"""The slots of keys, the digests of items, and the division of slots among shards."""

from __future__ import annotations

import itertools
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.core.items.idempotency_keys import (
    DIGEST_BYTES,
    KEY_SLOT_COUNT,
    divide_key_slots,
    item_digest,
    key_slot,
    key_slots,
)


@pytest.mark.parametrize(("key", "slot"), [(b"~000", 0), (b"~3ff", 1_023), (b"~0a7and so on", 0x0A7)])
def test_a_key_may_name_its_slot(key: bytes, slot: int) -> None:
    assert key_slot(key) == slot


@pytest.mark.parametrize("key", [b"k", b"~", b"~00", b"~400", b"~fff", b"~0A7", b"~ 12", b"~+12", b"~0x1", b"a~001"])
def test_the_slot_of_any_other_key_comes_from_its_checksum(key: bytes) -> None:
    assert key_slot(key) == crc32(key) % 1_024


@given(st.lists(st.one_of(st.binary(max_size=6), st.sampled_from([b"~00", b"~001", b"~001-2", b"~0zz", b"~0zz1"]))))
def test_the_slots_of_many_keys_are_the_slots_of_each_key(keys: list[bytes]) -> None:
    assert list(key_slots(keys)) == [key_slot(key) for key in keys]


def test_items_that_differ_in_any_field_have_different_digests() -> None:
    none = (None,) * 6
    given_items = [
        (b"t", 0, b"p", b"m", None),
        (b"tp", 0, b"", b"m", None),
        (b"", 0, b"pm", b"t", None),
        (b"mt", 0, b"p", b"", None),
        (b"t", 1, b"p", b"m", None),
        (b"t", -1, b"p", b"m", None),
        (b"t|1", 0, b"p", b"m", None),
        *((b"t", 0, b"p", b"m", (*none[:place], 5, *none[place + 1 :])) for place in range(6)),
        (b"t", 0, b"p", b"m", (0, *none[1:])),
        (b"t", 0, b"p", b"m", (5, 5, *none[2:])),
    ]
    digests = [item_digest(*item) for item in given_items]
    assert {len(digest) for digest in digests} == {DIGEST_BYTES}
    assert len(set(digests)) == len(digests)


def test_equal_items_have_equal_digests() -> None:
    assert item_digest(b"t", 0, b"p", b"m", None) == item_digest(b"t", 0, b"p", b"m", (None,) * 6)


@pytest.mark.parametrize(
    "shards", [(1,), (1, 2), (5, 2, 9), tuple(range(32)), tuple(range(1_024)), tuple(range(2_000))]
)
def test_slots_are_divided_evenly_and_each_goes_to_one_shard(shards: tuple[int, ...]) -> None:
    parts = divide_key_slots(shards)
    assert sorted(itertools.chain(*parts.values())) == list(range(KEY_SLOT_COUNT))
    sizes = {len(part) for part in parts.values()}
    assert max(sizes) - min(sizes) <= 1
    assert len(parts) == len(shards)
