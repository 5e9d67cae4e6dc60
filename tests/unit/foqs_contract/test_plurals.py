"""Tests of counts for people."""

from __future__ import annotations

from foqs_contract.plurals import counted


def test_one_is_singular_and_every_other_count_is_plural() -> None:
    assert [counted(count, "item") for count in (0, 1, 2, 1_000)] == ["0 items", "1 item", "2 items", "1,000 items"]
    assert [counted(count, "shard is", "shards are") for count in (1, 2)] == ["1 shard is", "2 shards are"]
