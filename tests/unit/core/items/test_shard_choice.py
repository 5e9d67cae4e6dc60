"""Which shards may take an item: whatever its fields ask for together, and whatever state the shards are in."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.core.items.shard_choice import (
    EFFICIENT_FLUSH_ITEMS,
    UNBOUND,
    Binding,
    Bindings,
    allowed_shards,
    choose_shards,
    joint_bindings,
)
from foqs_contract.errors import InvalidArgument


@dataclass(slots=True, frozen=True)
class Shard:
    number: int
    queued_items: int = 0
    is_answering: bool = True


NUMBERS = st.integers(1, 5)
SETS = st.frozensets(NUMBERS)
BINDINGS = st.builds(
    lambda sets: [Binding(f"field{place}", shards) for place, shards in enumerate(sets)], st.lists(SETS, max_size=4)
)


@st.composite
def hosts(draw: st.DrawFn) -> dict[int, Shard]:
    """Shards of one host; of the tier's five, others may be elsewhere."""
    return {
        number: Shard(number, draw(st.integers(0, 3 * EFFICIENT_FLUSH_ITEMS)), draw(st.booleans()))
        for number in draw(st.permutations(sorted(draw(SETS))))
    }


def chosen(
    bindings: list[Binding], shards: dict[int, Shard], drained: frozenset[int], removed: frozenset[int], turn: int
) -> list[int] | None:
    """Return the numbers of the chosen shards; None if the bindings exclude each other."""
    try:
        return [shard.number for shard in choose_shards(bindings, shards, drained, removed, turn)]
    except InvalidArgument:
        return None


@given(BINDINGS, hosts(), SETS, SETS, st.integers(0, 9))
def test_exactly_the_shards_that_every_binding_allows_and_that_take_items_are_chosen(
    bindings: list[Binding], shards: dict[int, Shard], drained: frozenset[int], removed: frozenset[int], turn: int
) -> None:
    found = chosen(bindings, shards, drained, removed, turn)
    if found is None:
        return
    allowed = {1, 2, 3, 4, 5}
    for binding in bindings:
        allowed &= binding.shards
    may_be_elsewhere = not bindings or len(allowed) > 1
    expected = {
        number
        for number in shards.keys() & allowed
        if shards[number].is_answering and number not in removed and not (may_be_elsewhere and number in drained)
    }
    assert sorted(found) == sorted(expected)


@given(BINDINGS, hosts(), hosts(), st.integers(0, 9))
def test_bindings_exclude_each_other_whatever_is_served(
    bindings: list[Binding], shards: dict[int, Shard], others: dict[int, Shard], turn: int
) -> None:
    none = frozenset[int]()
    known = [binding.shards for binding in bindings if binding.shards]
    excluded = bool(known) and not frozenset.intersection(*known)
    assert (chosen(bindings, shards, none, none, turn) is None) == excluded
    assert (chosen(bindings, others, frozenset({1, 2}), frozenset({3}), 0) is None) == excluded


@given(BINDINGS)
def test_error_names_fields_that_no_shard_satisfies_together(bindings: list[Binding]) -> None:
    try:
        allowed_shards(bindings)
    except InvalidArgument as error:
        named = [binding for binding in bindings if binding.field in error.message]
        assert len(named) >= 2
        assert error.field == named[-1].field
        assert not frozenset.intersection(*(binding.shards for binding in named))


@given(BINDINGS, SETS, hosts(), SETS, SETS, st.integers(0, 9))
def test_a_further_binding_never_adds_a_shard_unless_it_leaves_a_drained_one_as_the_only_one(
    bindings: list[Binding],
    further: frozenset[int],
    shards: dict[int, Shard],
    drained: frozenset[int],
    removed: frozenset[int],
    turn: int,
) -> None:
    before = chosen(bindings, shards, drained, removed, turn)
    after = chosen([*bindings, Binding("further", further)], shards, drained, removed, turn)
    if before is None:
        assert after is None
    elif after is not None:
        assert set(after) <= set(before) | drained
        assert len(set(after) - set(before)) <= 1


@given(st.lists(BINDINGS.map(tuple), max_size=4), st.data())
def test_items_that_must_be_in_one_shard_are_allowed_where_each_of_them_is(
    kinds: list[Bindings], data: st.DataObject
) -> None:
    items = data.draw(st.lists(st.sampled_from(kinds), max_size=6)) if kinds else []
    joint = joint_bindings(items)
    every = [binding for bindings in items for binding in bindings]
    try:
        allowed = allowed_shards(every)
    except InvalidArgument:
        with pytest.raises(InvalidArgument):
            allowed_shards(joint)
    else:
        assert allowed_shards(joint) == allowed
    assert len(joint) == sum(len(bindings) for bindings in {id(bindings): bindings for bindings in items}.values())


def test_items_that_cannot_be_in_one_shard_are_named_by_their_places_and_fields() -> None:
    first, second = ((Binding("key", frozenset((number,))),) for number in (1, 2))
    with pytest.raises(InvalidArgument) as caught:
        allowed_shards(joint_bindings([first, first, UNBOUND, second, second]))
    assert caught.value.field == "items[3].key"
    assert caught.value.message.startswith("items[0].key and items[3].key belong to different shards")


@given(hosts(), st.integers(0, 9))
def test_shards_are_ordered_by_queued_flushes_and_equal_ones_by_their_turn(shards: dict[int, Shard], turn: int) -> None:
    none = frozenset[int]()
    found = list(choose_shards(UNBOUND, shards, none, none, turn))
    answering = [shard for shard in shards.values() if shard.is_answering]
    start = turn % len(answering) if answering else 0
    rotated = [*answering[start:], *answering[:start]]
    assert found == sorted(rotated, key=lambda shard: shard.queued_items // EFFICIENT_FLUSH_ITEMS)


def test_each_of_equally_short_queues_is_first_for_a_turn() -> None:
    shards = {number: Shard(number, number) for number in (1, 2, 3)}
    none = frozenset[int]()
    first = [next(iter(choose_shards(UNBOUND, shards, none, none, turn))).number for turn in range(4)]
    assert first == [1, 2, 3, 1]


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (({1}, {2}), "a and b belong to different shards, and must be in one; leave one of them out"),
        (({1, 2}, {2, 3}, {3}), "a and c belong to different shards, and must be in one; leave one of them out"),
        (
            ({1, 2}, {2, 3}, {1, 3}),
            "a and b and c belong to different shards, and must be in one; leave one of them out",
        ),
    ],
)
def test_fields_that_cannot_hold_together_are_named(sets: tuple[set[int], ...], message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        allowed_shards([Binding(field, frozenset(shards)) for field, shards in zip("abc", sets, strict=False)])
    assert caught.value.message == message
