"""A consumer of all items goes on until nothing can be left, and counts what it has acked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from foqs_client import (
    Client,
    Delivery,
    FoqsError,
    NotFound,
    Outcome,
    StaleLease,
    TopicPage,
    Unavailable,
    UnknownOutcome,
)
from foqs_client.types import Deliveries
from perf.lib.dequeue_all import dequeue_all
from tests.support.aio import run

NOTHING: list[Delivery] = []
EMPTY = TopicPage([], None)


class Scripted:
    """A client whose replies are given. After them everything is empty.

    Attributes:
        dequeues, pages, acks: the replies of each call, in order. An ack without a reply succeeds.
    """

    def __init__(
        self,
        dequeues: Sequence[list[Delivery] | FoqsError],
        pages: Sequence[TopicPage] = (),
        acks: Sequence[FoqsError | None] = (),
    ) -> None:
        self.dequeues, self.pages, self.acks = [*dequeues], [*pages], [*acks]

    async def dequeue(self, wants: dict[str, int], **_: Any) -> Deliveries:
        found = self.dequeues.pop(0) if self.dequeues else NOTHING
        if isinstance(found, FoqsError):
            raise found
        return Deliveries(found)

    async def topics(self, prefix: str, limit: int) -> TopicPage:
        return self.pages.pop(0) if self.pages else EMPTY

    async def ack(self, found: Sequence[Delivery]) -> list[Outcome]:
        return [Outcome(self.acks.pop(0) if self.acks else None) for _ in found]


def delivery(number: int) -> Delivery:
    return Delivery(id=f"0-{number}", topic="t", payload=b"%d" % number)


def taken(client: Scripted, limit_s: float = 10.0) -> list[bytes]:
    return run(dequeue_all(cast(Client, client), "t", limit_s=limit_s))


def test_shard_that_cannot_deliver_is_waited_for() -> None:
    without_shard = TopicPage([], None, unavailable_shards=1)
    assert taken(Scripted([NOTHING, [delivery(1)]], [without_shard])) == [b"1"]


def test_dequeue_with_an_unknown_outcome_is_repeated() -> None:
    assert taken(Scripted([UnknownOutcome("lost host"), [delivery(1)]])) == [b"1"]


def test_dequeue_that_is_refused_for_now_is_repeated() -> None:
    assert taken(Scripted([Unavailable("recovers", retry_after_ms=1), [delivery(1)]])) == [b"1"]


def test_refused_dequeue_is_raised() -> None:
    with pytest.raises(NotFound):
        taken(Scripted([NotFound("no such namespace")]))


@pytest.mark.parametrize("refusal", [Unavailable("recovers"), StaleLease("it has ended")])
def test_item_that_comes_again_because_its_ack_was_refused_counts_once(refusal: FoqsError) -> None:
    assert taken(Scripted([[delivery(1)], [delivery(1)]], acks=[refusal])) == [b"1"]


def test_item_whose_ack_has_an_unknown_outcome_counts_once() -> None:
    unknown = UnknownOutcome("lost host")
    assert taken(Scripted([[delivery(1)]], acks=[unknown])) == [b"1"]
    assert taken(Scripted([[delivery(1)], [delivery(1)]], acks=[unknown])) == [b"1"]


def test_acked_item_that_comes_again_counts_twice() -> None:
    assert taken(Scripted([[delivery(1)], [delivery(1)]])) == [b"1", b"1"]


def test_shard_that_never_delivers_ends_with_a_time_limit() -> None:
    class NeverServed(Scripted):
        async def topics(self, prefix: str, limit: int) -> TopicPage:
            return TopicPage([], None, unavailable_shards=1)

        async def dequeue(self, wants: dict[str, int], **_: Any) -> Deliveries:
            raise Unavailable("recovers", retry_after_ms=1)

    with pytest.raises(TimeoutError):
        taken(NeverServed([]), limit_s=0.05)
