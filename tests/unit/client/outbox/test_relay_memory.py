"""Which rows the owner of an outbox stamps, holds, parks and sends again."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from foqs_client.errors import (
    FoqsError,
    InvalidArgument,
    KeyConflict,
    KeyEnded,
    LimitExceeded,
    NamespaceNotFound,
    Unavailable,
    UnknownOutcome,
)
from foqs_client.outbox.relay_limits import RelayLimits
from foqs_client.outbox.relay_memory import ParkedRow, RelayMemory, Round
from foqs_client.outbox.relay_state import RelayState, Stamp
from foqs_client.outbox.row_groups import OutboxRow
from foqs_client.outbox.row_outcome import ROW_OUTCOMES, Reply, SentState, replies_of

UNTIL_MS = 1_000


def rows(*named: tuple[int, str | None]) -> list[OutboxRow]:
    return [OutboxRow(id, group) for id, group in named]


def new_memory(limits: RelayLimits | None = None) -> RelayMemory:
    """Return a memory after the sweep of its takeover, which found nothing."""
    memory = RelayMemory(RelayState(), (), (), 0.0, limits or RelayLimits())
    memory.begin_sweep()
    memory.add_swept(())
    return memory


def sent_ids(round: Round) -> list[list[int]]:
    return sorted([row.id for row in call.rows] for call in round.calls)


def commit(memory: RelayMemory, keys_until_ms: int | None = UNTIL_MS) -> Round:
    round = memory.plan_round(keys_until_ms)
    memory.on_round_committed()
    return round


def sweep(memory: RelayMemory, found: Sequence[OutboxRow]) -> None:
    memory.begin_sweep()
    memory.add_swept(found)
    memory.add_swept(())


def test_rows_without_a_group_go_in_one_call_and_rows_of_a_group_in_a_run() -> None:
    memory = new_memory()
    memory.add_page(rows((1, None), (2, "a"), (3, "b"), (4, "a"), (5, None)), 0.0)

    round = commit(memory)

    assert sent_ids(round) == [[1, 5, 3], [2, 4]]
    assert [call.is_atomic for call in round.calls] == [True, False]
    assert round.state.stamps == (Stamp(UNTIL_MS, (1, 2, 3, 4, 5)),)


def test_the_next_rows_of_a_group_wait_for_the_reply() -> None:
    memory = new_memory()
    memory.add_page(rows((1, "a")), 0.0)
    commit(memory)
    memory.add_page(rows((2, "a"), (3, "b")), 0.0)

    assert sent_ids(commit(memory)) == [[3]]
    memory.on_replies({1: Reply.WRITTEN})
    round = commit(memory)
    assert sent_ids(round) == [[2]]
    assert round.deleted == [1]


def test_without_an_end_of_keys_nothing_is_stamped() -> None:
    memory = new_memory()
    memory.add_page(rows((1, None)), 0.0)

    assert commit(memory, keys_until_ms=None).is_empty
    assert sent_ids(commit(memory)) == [[1]]


def test_a_refusal_for_a_while_ends_the_stamp_and_a_sweep_finds_the_rows_in_order() -> None:
    memory = new_memory()
    memory.add_page(rows((1, "a"), (2, "a")), 0.0)
    commit(memory)
    memory.on_replies({1: Reply.LATER, 2: Reply.LATER})
    memory.add_page(rows((3, "a")), 0.0)

    round = commit(memory)
    assert round.is_empty
    assert round.state.stamps == ()
    assert memory.wants_sweep
    sweep(memory, rows((1, "a"), (2, "a"), (3, "a")))
    assert sent_ids(commit(memory)) == [[1, 2, 3]]


def test_a_row_in_doubt_keeps_the_end_of_its_key_and_needs_no_new_stamp() -> None:
    memory = RelayMemory(RelayState(9, (), (Stamp(77, (4, 5)),)), rows((4, "a"), (5, "a")), (), 0.0)

    [call] = memory.doubtful_calls()
    assert ([row.id for row in call.rows], call.keys_until_ms, call.is_atomic) == ([4], 77, False)
    assert memory.doubtful_calls() == []
    memory.on_replies({4: Reply.LATER})
    assert [row.id for call in memory.doubtful_calls() for row in call.rows] == [4]
    memory.on_replies({4: Reply.WRITTEN})
    assert [row.id for call in memory.doubtful_calls() for row in call.rows] == [5]


def test_a_parked_row_holds_the_later_rows_of_its_group_until_an_operator_drops_it() -> None:
    memory = new_memory()
    memory.add_page(rows((1, "a"), (2, "b")), 0.0)
    commit(memory)
    memory.on_replies({1: Reply.REFUSED, 2: Reply.WRITTEN})
    round = commit(memory)
    assert [(row.id, row.may_be_queued) for row in round.parked] == [(1, False)]
    memory.add_page(rows((3, "a"), (4, "b")), 0.0)

    assert sent_ids(commit(memory)) == [[4]]
    assert not memory.wants_sweep
    memory.on_parked_read([])
    assert memory.wants_sweep
    sweep(memory, rows((3, "a")))
    assert sent_ids(commit(memory)) == [[3]]


def test_a_resent_row_goes_before_the_rows_that_it_held() -> None:
    memory = new_memory()
    memory.add_page(rows((1, "a")), 0.0)
    commit(memory)
    memory.on_replies({1: Reply.REFUSED})
    commit(memory)
    memory.add_page(rows((2, "a")), 0.0)

    memory.on_parked_read([ParkedRow(OutboxRow(1, "a"), "resend")])
    sweep(memory, rows((2, "a")))
    memory.add_gap_rows((), 0.0, is_complete=False)  # all waiting rows are forgotten
    sweep(memory, rows((2, "a")))
    assert sent_ids(commit(memory)) == [[1]]
    sweep(memory, rows((2, "a")))
    assert commit(memory).is_empty
    memory.on_replies({1: Reply.WRITTEN})
    assert commit(memory).deleted == [1]
    sweep(memory, rows((2, "a")))
    assert sent_ids(commit(memory)) == [[2]]


def test_a_resent_row_that_is_refused_again_holds_its_group_still() -> None:
    memory = new_memory()
    memory.on_parked_read([ParkedRow(OutboxRow(1, "a", may_be_queued=True), "resend")])
    commit(memory)
    memory.on_replies({1: Reply.LATER})
    memory.on_parked_read([ParkedRow(OutboxRow(1, "a", may_be_queued=True), "resend")])
    assert sent_ids(commit(memory)) == [[1]]
    memory.on_replies({1: Reply.REFUSED})
    memory.add_page(rows((2, "a")), 0.0)

    round = commit(memory)
    assert [(row.id, row.may_be_queued) for row in round.parked] == [(1, True)]
    assert round.calls == []


def test_resent_rows_of_a_group_go_one_by_one_in_order() -> None:
    memory = new_memory()
    parked = [ParkedRow(row, "resend") for row in rows((1, "a"), (2, "a"), (3, None))]
    memory.on_parked_read(parked)

    assert sent_ids(commit(memory)) == [[1, 3]]
    memory.on_parked_read(parked)
    assert commit(memory).is_empty
    memory.on_replies({1: Reply.WRITTEN})
    assert sent_ids(commit(memory)) == [[2]]


def test_rows_below_a_parked_one_go_on_when_a_doubt_of_their_group_ends() -> None:
    memory = RelayMemory(RelayState(10, (), (Stamp(77, (5,)),)), rows((5, "a")), [ParkedRow(OutboxRow(10, "a"))], 0.0)
    sweep(memory, rows((6, "a"), (11, "a")))
    memory.on_replies({5: Reply.WRITTEN})

    assert memory.wants_sweep
    sweep(memory, rows((6, "a"), (11, "a")))
    assert sent_ids(commit(memory)) == [[6]]


def test_a_key_that_ended_parks_a_row_in_doubt_and_those_behind_it() -> None:
    memory = RelayMemory(RelayState(9, (), (Stamp(77, (4, 5, 6)),)), rows((4, "a"), (5, "a"), (6, "b")), (), 0.0)
    memory.doubtful_calls()

    memory.on_replies({4: Reply.ENDED, 6: Reply.WRITTEN})

    assert [(row.id, row.may_be_queued) for row in commit(memory).parked] == [(4, True), (5, True)]


def test_rows_that_find_no_room_are_left_to_a_sweep() -> None:
    memory = new_memory(RelayLimits(waiting_rows_max=2, stamp_rows_max=2))
    memory.add_page(rows((1, None), (2, None), (3, None), (4, "a")), 0.0)

    assert sent_ids(commit(memory)) == [[1, 4]]
    assert memory.wants_sweep
    sweep(memory, rows((2, None), (3, None)))
    assert sent_ids(commit(memory)) == [[2, 3]]


def test_only_rows_of_a_group_that_found_no_room_make_it_cut() -> None:
    memory = new_memory(RelayLimits(waiting_rows_max=2))
    memory.add_page(rows((1, "a")), 0.0)
    commit(memory)
    memory.on_replies({1: Reply.LATER})
    assert (memory.wants_sweep, memory.has_cut_groups) == (True, False)

    memory.add_page(rows((2, "b"), (3, "b"), (4, "b")), 0.0)
    assert memory.has_cut_groups


def test_rows_with_long_payloads_take_the_room_of_several() -> None:
    memory = new_memory(RelayLimits(waiting_rows_max=20, stamp_rows_max=10, in_flight_rows_max=15, run_rows_max=100))
    long = [OutboxRow(id, group, places=6) for id, group in ((1, None), (2, None), (3, "a"), (4, "a"), (5, "a"))]
    memory.add_page(long[:2], 0.0)
    assert not memory.wants_rows
    memory.add_page(long[2:], 0.0)

    first = commit(memory)
    assert sent_ids(first) == [[1, 3]]  # a run takes half of the room, the other rows the rest
    assert sent_ids(commit(memory)) == [[2]]  # 12 of 15 places are in flight, and the last row may exceed them
    assert sent_ids(commit(memory)) == []
    memory.on_replies(dict.fromkeys([1, 2, 3], Reply.WRITTEN))
    assert sent_ids(commit(memory)) == [[4, 5]]


def test_a_large_group_keeps_its_first_rows_when_others_need_room_and_goes_on_without_a_sweep() -> None:
    memory = new_memory(RelayLimits(waiting_rows_max=6, run_rows_max=1))
    memory.add_page(rows(*[(id, "a") for id in range(1, 3)]), 0.0)
    assert sent_ids(commit(memory)) == [[1]]
    memory.add_page(rows(*[(id, "a") for id in range(3, 9)], (9, "b")), 0.0)
    assert sent_ids(commit(memory)) == [[9]]
    for id in (2, 3, 4):
        memory.on_replies({id - 1: Reply.WRITTEN})
        assert sent_ids(commit(memory)) == [[id]]
    memory.on_replies({4: Reply.WRITTEN})
    assert commit(memory).calls == []

    sweep(memory, rows(*[(id, "a") for id in range(5, 9)]))
    assert sent_ids(commit(memory)) == [[5]]


def test_a_sweep_without_room_ends_early_and_the_next_one_finds_what_it_left() -> None:
    memory = new_memory(RelayLimits(waiting_rows_max=4, run_rows_max=1))
    memory.add_page(rows(*[(id, "ab"[id % 2]) for id in range(1, 21)]), 0.0)
    assert sent_ids(commit(memory)) == [[1, 2]]
    assert (memory.has_drained, memory.has_cut_groups) == (False, True)
    memory.begin_sweep()
    memory.add_swept(rows(*[(id, "ab"[id % 2]) for id in range(1, 9)]))
    assert not memory.is_sweep_full
    memory.add_swept(rows(*[(id, "ab"[id % 2]) for id in range(9, 17)]))
    assert memory.is_sweep_full
    memory.end_sweep_early()
    assert (memory.swept_to, memory.wants_sweep) == (None, True)
    memory.add_page(rows((21, "a"), (22, "c")), 0.0)  # rows of any group wait for the next sweep

    sent = [1, 2]
    while len(sent) < 22:
        memory.on_replies(dict.fromkeys(sent[-2:], Reply.WRITTEN))
        found = sent_ids(commit(memory))
        if not found:
            assert memory.has_drained
            sweep(memory, rows(*[(id, "ab"[id % 2]) for id in range(1, 21) if id not in sent], (21, "a"), (22, "c")))
            found = sent_ids(commit(memory))
        sent += found[0]
    assert [id for id in sent if id % 2 == 0 and id < 22] == list(range(2, 21, 2))
    assert [id for id in sent if id % 2 or id == 22] == [*range(1, 20, 2), 21, 22]


def test_with_too_many_parked_rows_only_resent_ones_are_stamped() -> None:
    parked = [ParkedRow(OutboxRow(1)), ParkedRow(OutboxRow(2))]
    memory = RelayMemory(RelayState(), (), parked, 0.0, RelayLimits(parked_rows_max=2))
    memory.add_page(rows((3, None)), 0.0)
    memory.add_gap_rows((), 0.0)

    assert commit(memory).calls == []
    memory.on_parked_read([parked[0], ParkedRow(OutboxRow(2), "resend")])
    assert sent_ids(commit(memory)) == [[2]]
    memory.on_replies({2: Reply.WRITTEN})
    assert sent_ids(commit(memory)) == [[3]]


def test_nothing_is_stamped_between_a_page_and_the_read_of_the_gaps_below_it() -> None:
    memory = new_memory()
    memory.add_page(rows((1, None), (3, "a")), 0.0)

    assert sent_ids(commit(memory)) == []
    memory.add_page(rows((4, None)), 0.0)  # the read of the gaps has failed
    assert sent_ids(commit(memory)) == []
    memory.add_gap_rows(rows((2, "a")), 0.0)
    assert sent_ids(commit(memory)) == [[1, 4], [2, 3]]


def test_each_reply_to_each_state_has_an_outcome() -> None:
    assert set(ROW_OUTCOMES) == {(state, reply) for state in SentState for reply in Reply}


@pytest.mark.parametrize(
    ("error", "reply"),
    [
        (None, Reply.WRITTEN),
        (UnknownOutcome("x"), Reply.UNKNOWN),
        (InvalidArgument("x", field="items[0].topic"), Reply.REFUSED),
        (InvalidArgument("x", field="items[0].key_until_ms"), Reply.LATER),
        (KeyConflict("x"), Reply.REFUSED),
        (KeyEnded("x"), Reply.ENDED),
        (LimitExceeded("x", field="items[0].payload"), Reply.REFUSED),
        (LimitExceeded("x", field="items", retry_after_ms=1_000), Reply.LATER),
        (Unavailable("x"), Reply.LATER),
        (NamespaceNotFound("x"), Reply.LATER),
    ],
)
def test_an_error_stands_for_a_reply(error: FoqsError | None, reply: Reply) -> None:
    assert replies_of({1: error}, is_atomic=False) == {1: reply}


def test_a_run_of_which_some_keys_are_remembered_is_sent_again_one_by_one() -> None:
    memory = new_memory()
    memory.add_page(rows((1, "a"), (2, "a")), 0.0)
    commit(memory)
    replies = replies_of({1: KeyConflict("x"), 2: Unavailable("x")}, is_atomic=True)

    for id in (1, 2):
        memory.on_replies(replies)
        assert [row.id for call in memory.doubtful_calls() for row in call.rows] == [id]
        replies = {id: Reply.WRITTEN}
    memory.on_replies(replies)
    assert commit(memory).deleted == [1, 2]


def test_rows_behind_one_in_doubt_take_no_room_and_are_found_when_the_doubt_ends() -> None:
    memory = new_memory(RelayLimits(waiting_rows_max=2))
    memory.add_page(rows((1, "a"), (2, "b")), 0.0)
    commit(memory)
    memory.on_replies({1: Reply.UNKNOWN, 2: Reply.WRITTEN})
    memory.add_page(rows((3, "a"), (4, "a"), (5, "a"), (6, "b")), 0.0)

    assert memory.wants_rows
    assert sent_ids(commit(memory)) == [[6]]
    assert not memory.wants_sweep
    memory.on_replies({1: Reply.WRITTEN})
    assert memory.wants_sweep
    sweep(memory, rows((3, "a"), (4, "a")))
    assert sent_ids(commit(memory)) == [[3, 4]]


def test_rows_that_wait_for_a_reply_make_room_for_others() -> None:
    memory = new_memory(RelayLimits(waiting_rows_max=2))
    memory.add_page(rows((1, "a")), 0.0)
    commit(memory)
    memory.add_page(rows((2, "a"), (3, "a"), (4, "b")), 0.0)

    assert sent_ids(commit(memory)) == [[4]]
    memory.on_replies({1: Reply.WRITTEN})
    sweep(memory, rows((2, "a"), (3, "a")))
    assert sent_ids(commit(memory)) == [[2, 3]]
