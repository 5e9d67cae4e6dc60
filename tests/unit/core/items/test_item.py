"""The item: numbers, ids with exactly one spelling, and the order of delivery."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.core.items.item import (
    EPOCH_MAX,
    NUMBER_MAX,
    PRIORITY_MAX,
    PRIORITY_MIN,
    SEQUENCE_MAX,
    SHARD_MAX,
    TIME_MS_MAX,
    format_id,
    make_number,
    order_key_number,
    pack_order_key,
    parse_id,
    split_number,
    unpack_order_key,
)
from foqs_contract.errors import ERROR_BY_CODE, ErrorCode, FoqsError, InvalidArgument, NotOwner
from tests.support.builders import row

EPOCHS = st.integers(1, EPOCH_MAX)
SEQUENCES = st.integers(1, SEQUENCE_MAX)
SHARDS = st.integers(0, SHARD_MAX)


@given(EPOCHS, SEQUENCES)
def test_a_number_is_positive_fits_63_bits_and_splits_again(epoch: int, sequence: int) -> None:
    number = make_number(epoch, sequence)
    assert 0 < number < 1 << 63
    assert split_number(number) == (epoch, sequence)


@given(EPOCHS, SEQUENCES, EPOCHS, SEQUENCES)
def test_numbers_of_a_later_epoch_are_greater(epoch: int, sequence: int, other: int, other_sequence: int) -> None:
    ordered = (epoch, sequence) < (other, other_sequence)
    assert (make_number(epoch, sequence) < make_number(other, other_sequence)) == ordered


@pytest.mark.parametrize(
    ("epoch", "sequence"), [(0, 1), (-1, 1), (EPOCH_MAX + 1, 1), (1, 0), (1, -1), (1, SEQUENCE_MAX + 1)]
)
def test_an_epoch_or_sequence_out_of_bounds_is_refused(epoch: int, sequence: int) -> None:
    with pytest.raises(ValueError, match="outside"):
        make_number(epoch, sequence)


@given(SHARDS, EPOCHS, SEQUENCES)
def test_an_id_parses_back_to_its_shard_and_number(shard: int, epoch: int, sequence: int) -> None:
    number = make_number(epoch, sequence)
    assert parse_id(format_id(shard, number), "id") == (shard, number)


GOOD = make_number(1, 1)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-",
        "1",
        f"{GOOD}",
        f"-{GOOD}",
        "1-",
        f"1--{GOOD}",
        f"1-{GOOD}-1",
        f"01-{GOOD}",
        f"1-0{GOOD}",
        f"+1-{GOOD}",
        f" 1-{GOOD}",
        f"1-{GOOD} ",
        f"1-{GOOD}\n",
        f"1_0-{GOOD}",
        f"0x1-{GOOD}",
        f"a-{GOOD}",
        f"\u0661-{GOOD}",
        "1-\u00b9\u00b9",
        f"{SHARD_MAX + 1}-{GOOD}",
        "1-0",
        "1-1",
        f"1-{1 << 43}",
        f"1-{SEQUENCE_MAX}",
        f"1-{1 << 63}",
        f"1-{'9' * 19}",
        f"1-{'9' * 10_000}",
        f"{'9' * 10_000}-{GOOD}",
    ],
)
def test_any_other_spelling_of_an_id_is_refused_and_the_error_names_the_field(text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_id(text, "leases[2].id")
    assert caught.value.field == "leases[2].id"


@given(st.text(alphabet="0123456789-+_ \u0663x", max_size=30))
def test_item_has_only_one_text_form_of_its_id(text: str) -> None:
    try:
        shard, number = parse_id(text, "id")
    except InvalidArgument:
        return
    assert format_id(shard, number) == text


ROW = row(1, deliver_after_ms=0)


def test_order_is_priority_then_deliver_after_then_id() -> None:
    rows = [
        replace(ROW, priority=-1, deliver_after_ms=9, id=9),
        replace(ROW, priority=0, deliver_after_ms=1, id=8),
        replace(ROW, priority=0, deliver_after_ms=2, id=3),
        replace(ROW, priority=0, deliver_after_ms=2, id=4),
        replace(ROW, priority=1, deliver_after_ms=0, id=1),
    ]
    mixed = [rows[at] for at in (3, 1, 4, 2, 0)]
    assert sorted(mixed, key=lambda row: row.order_key) == rows


def _near(low: int, high: int) -> st.SearchStrategy[int]:
    """Draw any value, but often the ends and equal values."""
    return st.one_of(st.integers(low, high), st.sampled_from([low, low + 1, 0, 1, high - 1, high]))


KEYS = st.tuples(_near(PRIORITY_MIN, PRIORITY_MAX), _near(0, TIME_MS_MAX), _near(0, NUMBER_MAX))


@given(KEYS)
def test_a_packed_key_unpacks_to_its_parts(key: tuple[int, int, int]) -> None:
    packed = pack_order_key(*key)
    assert packed >= 0
    assert unpack_order_key(packed) == key
    assert order_key_number(packed) == key[2]
    priority, after, number = key
    assert replace(ROW, priority=priority, deliver_after_ms=after, id=number).order_key == packed


@given(st.lists(KEYS, max_size=20), KEYS)
def test_packed_keys_sort_as_their_parts_do(keys: list[tuple[int, int, int]], base: tuple[int, int, int]) -> None:
    near = [base, (base[0], base[1], min(base[2] + 1, NUMBER_MAX)), (base[0], min(base[1] + 1, TIME_MS_MAX), 0)]
    mixed = [*keys, *near]
    assert [unpack_order_key(packed) for packed in sorted(pack_order_key(*key) for key in mixed)] == sorted(mixed)


def test_keys_at_the_limits_differ_and_keep_their_order() -> None:
    ends = [
        (priority, after, number)
        for priority in (PRIORITY_MIN, -1, 0, 1, PRIORITY_MAX)
        for after in (0, 1, TIME_MS_MAX - 1, TIME_MS_MAX)
        for number in (0, 1, NUMBER_MAX - 1, NUMBER_MAX)
    ]
    packed = [pack_order_key(*key) for key in ends]
    assert packed == sorted(set(packed))
    assert packed[0] == 0


def test_every_code_has_one_error_class_with_that_code() -> None:
    assert set(ERROR_BY_CODE) == set(ErrorCode)
    for code, kind in ERROR_BY_CODE.items():
        assert kind.number is code
        assert kind.code == ErrorCode(code).name
        assert issubclass(kind, FoqsError)


def test_an_error_carries_its_fields_and_its_text_names_code_and_field() -> None:
    error = NotOwner("ask the owner", field="id", retry_after_ms=5, owner=("host", 7411))
    assert (error.message, error.field, error.retry_after_ms, error.owner) == ("ask the owner", "id", 5, ("host", 7411))
    assert str(error) == "NOT_OWNER (id): ask the owner"
    assert str(NotOwner("ask the owner")) == "NOT_OWNER: ask the owner"
