"""The digests of items, and the division of slots among shards."""

from __future__ import annotations

import itertools

import pytest

from foqs.core.items.idempotency_keys import DIGEST_BYTES, divide_key_slots, item_digest
from foqs_contract.key_slots import KEY_SLOT_COUNT


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
