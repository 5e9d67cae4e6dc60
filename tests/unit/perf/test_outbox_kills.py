"""The judgement of `perf.outbox_kills`: what counts as overtaken."""

from __future__ import annotations

import pytest

from perf.outbox_kills import _overtaken


@pytest.mark.parametrize(
    ("payloads", "count"),
    [
        ([b"1/1/0", b"1/1/1", b"1/100/0"], 0),
        ([b"1/100/0", b"2/2/0", b"1/1/0", b"1/1/1"], 2),
        ([b"1/1/1", b"1/1/0"], 1),
        ([b"2/2/0", b"1/1/0"], 0),
    ],
)
def test_an_item_is_overtaken_by_a_later_one_of_its_row_group(payloads: list[bytes], count: int) -> None:
    assert _overtaken(payloads) == count
