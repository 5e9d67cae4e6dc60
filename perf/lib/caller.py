"""The interface between a load and a compared system: a few calls with their arguments and results.

Always true: `put` returns when the items are durable, `take` when they are leased
durably or locked for this caller, `done` when they are deleted durably. Each call is
one request or one transaction, or `take` and `done` together are one. Items are
passed as columns, so the load costs little and each system builds what it needs.
Knows no system.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Protocol

LEASE_S: Final = 30.0
"""How long a consumer has an item before it is delivered again, in systems that lease."""
NO_ERRORS: Final[Mapping[str, int]] = MappingProxyType({})


@dataclass(slots=True)
class Batch:
    """Items of one call, column by column. Only FOQS gets priorities; None: all the same."""

    topics: Sequence[str]
    payloads: Sequence[bytes]
    priorities: Sequence[int] | None = None


@dataclass(slots=True)
class Put:
    """The outcome of a put: for each item 1 durable, 0 refused, 2 not known; and the errors by name."""

    fates: bytes
    errors: Mapping[str, int]


Taken = tuple[Sequence[Any], Sequence[bytes]]
"""The handles and the payloads of items, in the same order."""
NOTHING: Final[Taken] = ((), ())


class Caller(Protocol):
    """One caller: one call at a time."""

    async def put(self, items: Batch) -> Put: ...

    async def take(self, wants: Mapping[str, int], wait_ms: int) -> Taken:
        """Return items; none if the queue stays empty for a while."""
        ...

    async def done(self, handles: Sequence[Any]) -> None: ...

    async def close(self) -> None: ...


class Session(Protocol):
    """The connection of one load process to a system."""

    async def caller(self) -> Caller: ...

    async def close(self) -> None: ...


def all_durable(items: Batch) -> Put:
    """Return the outcome of a put that succeeded."""
    return Put(b"\1" * len(items.payloads), NO_ERRORS)
