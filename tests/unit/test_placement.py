"""Which shard gets new items without a key."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from foqs.core.errors import Unavailable
from foqs.service.calls import Enqueue
from foqs.service.placement import TURN_S, Placement
from tests.support.builders import new_item


@dataclass
class Shard:
    """What placement sees of one."""

    number: int
    queued_items: int
    refuses: bool = False
    answering: bool = True
    tried: list[int] = field(default_factory=list)

    def insert(self, *arguments: Any, **more: Any) -> Any:
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
    call = Enqueue(SimpleNamespace(), 1, lambda results: None)  # type: ignore[arg-type]
    Placement(shards, {}, lambda: 2 * TURN_S).place(call, "n", [new_item()], [0])
    assert seen == tried
    assert call.taken == 1
