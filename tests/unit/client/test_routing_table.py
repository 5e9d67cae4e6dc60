"""Tests how a call is split by the hosts of a routing table."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from foqs_client import FoqsError, Unavailable, UnknownOutcome
from foqs_client.routing_table import Address, call_by_host
from tests.support.aio import run

HOSTS = {"a": ("alpha", 1), "b": ("beta", 1)}


async def ask_where(failing: dict[str, FoqsError], entries: str) -> list[str | FoqsError]:
    async def ask(at: Address | None, part: Sequence[str]) -> list[str | FoqsError]:
        for host, error in failing.items():
            if HOSTS[host] == at:
                raise error
        return [f"{entry} done" for entry in part]

    return await call_by_host(entries, HOSTS.get, ask, lambda error: error)


def test_each_host_gets_its_entries_and_results_are_in_order() -> None:
    assert run(ask_where({}, "abab")) == ["a done", "b done", "a done", "b done"]


def test_the_entries_of_a_host_that_fails_have_its_error() -> None:
    gone = Unavailable("gone")
    assert run(ask_where({"b": gone}, "ab")) == ["a done", gone]


@pytest.mark.parametrize("kind", [Unavailable, UnknownOutcome])
def test_call_fails_with_the_first_error_if_no_host_replies(kind: type[FoqsError]) -> None:
    with pytest.raises(kind, match="first"):
        run(ask_where({"a": kind("first"), "b": kind("second")}, "ab"))


def test_entries_that_may_be_written_do_not_get_the_error_of_others() -> None:
    """Nothing was sent to the first host, and the second may have written its entries."""
    gone, unknown = Unavailable("nothing was sent"), UnknownOutcome("it may be written")
    assert run(ask_where({"a": gone, "b": unknown}, "ab")) == [gone, unknown]
    assert run(ask_where({"a": unknown, "b": gone}, "ab")) == [unknown, gone]
