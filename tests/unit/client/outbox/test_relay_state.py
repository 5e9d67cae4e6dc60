"""The state of a relay is read as it was written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs_client.outbox.relay_state import RelayState, Stamp, decode_state

_IDS = st.integers(1, 1 << 62)
_STAMPS = st.builds(Stamp, st.integers(0, 1 << 45), st.frozensets(_IDS, min_size=1).map(lambda ids: tuple(sorted(ids))))
_STATES = st.builds(
    RelayState, _IDS, st.lists(st.tuples(_IDS, _IDS)).map(tuple), st.lists(_STAMPS, max_size=3).map(tuple)
)


@given(_STATES)
def test_a_decoded_state_is_the_encoded_one(state: RelayState) -> None:
    assert decode_state(state.encode()) == state


def test_an_empty_state_is_that_of_an_outbox_without_a_relay() -> None:
    assert decode_state(b"") == RelayState()


def test_neighbouring_ids_of_a_stamp_take_little_room() -> None:
    state = RelayState(500, (), (Stamp(1, tuple(range(1, 501))),))

    assert len(state.encode()) < 60


@pytest.mark.parametrize("data", [b"no json", b"[]", b"{}", b'{"read_to": 1, "gaps": [1], "stamps": []}'])
def test_what_is_no_state_is_said_to_be_none(data: bytes) -> None:
    with pytest.raises(ValueError, match="not a state"):
        decode_state(data)
