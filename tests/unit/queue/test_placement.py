"""Which shard gets new items without a key."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from foqs.core.errors import Unavailable
from foqs.queue.pending_calls import EnqueueCall
from foqs.queue.placement import ROTATION_S, Placement
from tests.support.builders import new_item


@dataclass
class Shard:
    """What placement sees of one."""

    number: int
    queued_items: int
    refuses: bool = False
    is_answering: bool = True
    is_serving: bool = True
    accepts_items: bool = True
    unavailable_reason: str | None = None
    tried: list[int] = field(default_factory=list)

    def submit_inserts(self, *arguments: Any, **more: Any) -> Any:
        self.tried.append(self.number)
        if self.refuses:
            raise Unavailable("not now", retry_after_ms=1)
        return SimpleNamespace()


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
def test_the_shortest_queue_gets_items_and_the_next_shortest_where_it_refuses(
    queued: tuple[int, ...], refusing: tuple[int, ...], tried: list[int]
) -> None:
    """It is the turn of 2, then of 0 and 1."""
    seen: list[int] = []
    shards: Any = {at: Shard(at, items, at in refusing, tried=seen) for at, items in enumerate(queued)}
    call = EnqueueCall(SimpleNamespace(), 1, lambda results: None)  # type: ignore[arg-type]
    Placement(shards, {}, lambda: 2 * ROTATION_S).place(call, "n", [new_item()], [0])
    assert seen == tried
    assert call.accepted_count == 1


def refused(shards: dict[int, Any], *, drained: Collection[int] = (), gone: Collection[int] = ()) -> str:
    """What an item without a key is told."""
    placement = Placement(shards, {}, lambda: 0.0)
    placement.drained_shards, placement.removed_shards = drained, gone
    call = EnqueueCall(SimpleNamespace(), 1, lambda results: None)  # type: ignore[arg-type]
    with pytest.raises(Unavailable) as caught:
        placement.place(call, "n", [new_item()], [0])
    assert not placement.accepts_items
    return str(caught.value)


def test_where_every_shard_that_answers_is_closed_it_says_so_and_what_ails_the_others() -> None:
    shards: Any = {
        0: Shard(0, 0),
        1: Shard(1, 0),
        2: Shard(2, 0, is_answering=False, unavailable_reason="its database is away"),
    }
    assert "serves now is drained or removed" in refused(shards, drained={0}, gone={1})
    assert "shard 2: its database is away" in refused(shards, drained={0}, gone={1})
