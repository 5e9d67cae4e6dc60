"""What holds for the items of an atomic call."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.core.items.atomic_items import check_atomic_items
from foqs.core.items.item import NewItem
from foqs_contract.errors import FoqsError, InvalidArgument, LimitExceeded
from tests.support.builders import keyed_item, new_item


def items_of(keys: Sequence[str | None]) -> list[NewItem]:
    return [new_item() if key is None else keyed_item(key) for key in keys]


@given(st.lists(st.none() | st.sampled_from("abc"), min_size=1, max_size=4))
def test_keys_are_all_given_and_different_or_none_is_given(keys: list[str | None]) -> None:
    given_keys = [key for key in keys if key is not None]
    fits = not given_keys or (len(given_keys) == len(keys) == len(set(keys)))
    try:
        check_atomic_items(items_of(keys), 4, 1_000)
    except InvalidArgument as error:
        assert not fits
        first_bad = next(place for place, key in enumerate(keys) if key is None or key in keys[:place])
        if None in keys:
            first_bad = keys.index(None)
        assert error.field == f"items[{first_bad}].idempotency_key"
    else:
        assert fits


@pytest.mark.parametrize(
    ("items", "error"),
    [
        (items_of([None] * 3), None),
        (items_of([None] * 4), LimitExceeded),
        ([new_item(payload=b"x" * 19, metadata=b"y")], None),
        ([new_item(payload=b"x" * 11), new_item(payload=b"x" * 10)], LimitExceeded),
    ],
)
def test_items_and_bytes_are_limited(items: list[NewItem], error: type[FoqsError] | None) -> None:
    if error is None:
        check_atomic_items(items, 3, 21)
        return
    with pytest.raises(error) as caught:
        check_atomic_items(items, 3, 20)
    assert caught.value.field == "items"
