"""The shard for new items without an idempotency key."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from foqs.catalog.namespaces import Namespaces
from foqs.catalog.slot_table import SlotTable
from foqs.core.flush.operation import Lane, Operation
from foqs.options.options import NamespaceOptions
from foqs.queue.host_state import HostState
from foqs.queue.owned_shards import OwnedShards
from foqs.queue.pending_calls import EnqueueCall
from foqs.queue.placement import ROTATION_S, Placement, accepts_items
from foqs.queue.tier import Alone
from foqs.runtime.deadlines import Deadlines
from foqs.shard.host_shards import HostShards
from foqs.testing.virtual_loop import VirtualLoop
from foqs_contract.errors import Unavailable
from tests.support.builders import new_item


@dataclass
class Shard:
    """A shard as placement sees it."""

    number: int
    queued_items: int
    refuses: bool = False
    is_answering: bool = True
    is_serving: bool = True
    accepts_items: bool = True
    unavailable_reason: str | None = None
    tried: list[int] = field(default_factory=list)

    def submit_inserts(self, *arguments: Any, **options: Any) -> Any:
        self.tried.append(self.number)
        if self.refuses:
            raise Unavailable("not now", retry_after_ms=1)
        return Operation(Lane.INSERT, "n", [self.number], None)


NO_SLOTS = SlotTable(Namespaces(NamespaceOptions()))


def tier() -> Alone:
    return Alone("nonce", (), HostState(NamespaceOptions(), "default", lambda: 0.0))


@pytest.fixture
def deadlines() -> Iterator[Deadlines]:
    with contextlib.closing(VirtualLoop()) as loop:
        yield Deadlines(loop)


@pytest.mark.parametrize(
    ("queued", "refusing", "tried"),
    [
        ((0, 0, 0), (), [2]),
        ((0, 300, 63), (), [2]),
        ((0, 64, 300), (), [0]),
        ((64, 100, 127), (), [2]),
        ((300, 100, 0), (2,), [2, 1]),
        ((100, 300, 0), (2, 0), [2, 0, 1]),
        ((300, 0, 300), (1,), [1, 2]),
    ],
)
def test_items_are_sent_to_the_shortest_queue_and_on_refusal_to_the_next(
    queued: tuple[int, ...], refusing: tuple[int, ...], tried: list[int], deadlines: Deadlines
) -> None:
    """Shard 2 is the first in the rotation, then 0 and 1."""
    submitted: list[int] = []
    shards: Any = {at: Shard(at, items, at in refusing, tried=submitted) for at, items in enumerate(queued)}
    call = EnqueueCall(deadlines, 1, lambda results: None)
    alone = tier()
    owned = OwnedShards(HostShards(shards), alone)
    Placement(owned, NO_SLOTS, alone, lambda: 2 * ROTATION_S).place(call, "n", [new_item()], [0])
    assert submitted == tried
    assert call.accepted_count == 1


def error_text(
    deadlines: Deadlines, shards: dict[int, Any], *, drained: Collection[int] = (), removed: Collection[int] = ()
) -> str:
    """Return the error for an item without a key."""
    closed = tier()
    closed.drained_shards, closed.removed_shards = drained, removed
    placement = Placement(OwnedShards(HostShards(shards), closed), NO_SLOTS, closed, lambda: 0.0)
    call = EnqueueCall(deadlines, 1, lambda results: None)
    with pytest.raises(Unavailable) as caught:
        placement.place(call, "n", [new_item()], [0])
    assert not accepts_items(shards, closed)
    return str(caught.value)


def test_error_names_closed_shards_and_the_reason_of_an_unavailable_one(deadlines: Deadlines) -> None:
    shards: Any = {
        0: Shard(0, 0),
        1: Shard(1, 0),
        2: Shard(2, 0, is_answering=False, unavailable_reason="its database is away"),
    }
    assert "serves now is drained or removed" in error_text(deadlines, shards, drained={0}, removed={1})
    assert "shard 2: its database is away" in error_text(deadlines, shards, drained={0}, removed={1})
