"""The fence: how an owner row shows the outcome of a flush."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.core.flush.fence import CommitOutcome, Fence, Owner, commit_outcome
from foqs.core.items.item import split_number

FENCE = Fence(epoch=5, nonce="me", flush=8, clock_ms=100)


def owner(epoch: int = 5, nonce: str = "me", flush: int = 8) -> Owner:
    return Owner(epoch=epoch, nonce=nonce, flush=flush, clock_ms=100, connection=1)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (owner(flush=8), CommitOutcome.COMMITTED),
        (owner(flush=7), CommitOutcome.NOT_COMMITTED),
        (owner(flush=6), CommitOutcome.FENCED),
        (owner(flush=9), CommitOutcome.FENCED),
        (owner(flush=0), CommitOutcome.FENCED),
        (owner(epoch=6), CommitOutcome.FENCED),
        (owner(epoch=6, flush=7), CommitOutcome.FENCED),
        (owner(epoch=4, flush=7), CommitOutcome.FENCED),
        (owner(nonce="another"), CommitOutcome.FENCED),
        (owner(nonce="another", flush=7), CommitOutcome.FENCED),
    ],
)
def test_the_owner_row_shows_the_outcome_of_a_flush(row: Owner, expected: CommitOutcome) -> None:
    assert commit_outcome(FENCE, row) is expected


def test_the_first_flush_is_distinguished_from_a_fresh_takeover() -> None:
    first = Fence(epoch=5, nonce="me", flush=1, clock_ms=100)
    assert commit_outcome(first, owner(flush=0)) is CommitOutcome.NOT_COMMITTED
    assert commit_outcome(first, owner(flush=1)) is CommitOutcome.COMMITTED


@given(st.integers(4, 6), st.sampled_from(["me", "you"]), st.integers(0, 12))
def test_a_flush_is_committed_only_if_the_row_has_its_number(epoch: int, nonce: str, flush: int) -> None:
    outcome = commit_outcome(FENCE, owner(epoch, nonce, flush))
    assert (outcome is CommitOutcome.COMMITTED) == ((epoch, nonce, flush) == (5, "me", 8))
    assert (outcome is CommitOutcome.NOT_COMMITTED) == ((epoch, nonce, flush) == (5, "me", 7))


@given(st.integers(1, 1 << 19), st.integers(1, 1 << 42))
def test_the_token_of_a_flush_holds_its_epoch_and_number_and_rises_with_both(epoch: int, flush: int) -> None:
    fence = Fence(epoch, "me", flush, 0)
    assert split_number(fence.token) == (epoch, flush)
    assert fence.token < Fence(epoch, "me", flush + 1, 0).token < Fence(epoch + 1, "me", 1, 0).token
