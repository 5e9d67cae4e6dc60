"""An item that kills whatever works on it, among items that do not: what must come of each.

Holds the items, and the judge of what was begun. Knows nothing of what dies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from foqs_client import Item

if TYPE_CHECKING:  # a worker process that imports this starts faster
    from foqs.testing import FakeHost

POISON: Final = b"poison"
ATTEMPTS_MAX: Final = 3
DEATHS_MAX: Final = ATTEMPTS_MAX + 1
"""A story ends after as many deaths, also if the poison is never charged."""
_INNOCENT_COUNT: Final = 4

Begun = tuple[bytes, int]
"""The payload of an item that a handler began, and its attempt."""


def poisoned_items(lease_ms: int = 2_000) -> list[Item]:
    """Return the poison, which is delivered first, and the others."""
    payloads = [POISON, *(b"innocent %d" % number for number in range(_INNOCENT_COUNT))]
    return [
        Item("t", payload, priority=number, attempts_max=ATTEMPTS_MAX, lease_ms=lease_ms)
        for number, payload in enumerate(payloads)
    ]


async def problems_of(fake: FakeHost, begun: Sequence[Begun]) -> list[str]:
    """Return what is wrong: the poison must be dead after its attempts, and each other item done at its first one."""
    found = [
        f"{payload.decode()} was begun at attempt {attempt}"
        for payload, attempt in begun
        if payload != POISON and attempt != 1
    ]
    deaths = sum(payload == POISON for payload, _ in begun)
    if deaths != ATTEMPTS_MAX:
        found.append(f"the poison was begun {deaths} times")
    left = [(view.payload, view.state) for view in await fake.items("t")]
    if left != [(POISON, "dead")]:
        found.append(f"left are {left}")
    return found
