"""A host uses only the server that the entry of its database names, and says of another one what is wrong with it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foqs.store.mysql.expected_server import ExpectedServer, SeenServer

EXPECTED = ExpectedServer("a", 11, 7, needs_acks=True)
RIGHT = SeenServer(11, 7, is_read_only=False, waits_for_acks=True)


def test_server_of_the_entry_is_accepted() -> None:
    assert EXPECTED.problem(RIGHT) is None
    assert replace(EXPECTED, needs_acks=False).problem(replace(RIGHT, waits_for_acks=False)) is None


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        (
            replace(RIGHT, server_id=12),
            "another server than the primary a: its server_id is 12, not 11; correct the address",
        ),
        (replace(RIGHT, term=6), "a is in term 6, and this host in term 7"),
        (replace(RIGHT, term=8), "a is in term 8, and this host in term 7"),
        (replace(RIGHT, is_read_only=True), "a is read-only"),
        (replace(RIGHT, passes_read_only=True), "the account of this host may write a although it is read-only"),
        (replace(RIGHT, waits_for_acks=False), "a answers commits that no acker has"),
        (SeenServer(12, 8, is_read_only=True, waits_for_acks=False), "another server than the primary a"),
    ],
)
def test_wrong_server_is_refused_with_what_is_wrong(seen: SeenServer, reason: str) -> None:
    assert reason in str(EXPECTED.problem(seen))
