"""Planted bugs of atomic calls. See `planted`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from foqs.core.flush import flush_keys
from foqs.core.flush.batch import Batch, Part
from foqs.core.flush.flush_keys import FlushKeys
from foqs.core.flush.operation import Operation
from foqs.shard import shard
from tests.simulation.planted import Bug
from tests.simulation.planting import plant


def atomic_calls_divided() -> None:
    """A flush takes as many items of an atomic call as it has room for."""

    def inserts(*arguments: Any, is_whole: bool = False, **options: Any) -> Any:
        return original(*arguments, **options)

    original: Any = plant(shard, "Inserts", inserts)


def atomic_calls_halved() -> None:
    """A refused flush of one atomic call is halved, like any other."""

    def split(self: Batch) -> tuple[Batch, Batch]:
        half = len(self) // 2
        first: list[Part[Any]] = []
        second: list[Part[Any]] = []
        for part in self.parts:
            middle = part.start + min(half, part.count)
            half -= middle - part.start
            if middle > part.start:
                first.append(Part(part.operation, part.start, middle))
            if middle < part.stop:
                second.append(Part(part.operation, middle, part.stop))
        return Batch(first), Batch(second)

    plant(Batch, "split", split)
    plant(Batch, "is_divisible", property(lambda self: len(self) > 1))


def atomic_calls_half_answered() -> None:
    """Only the second half of an atomic call counts as being written, so the first half is withdrawn at the deadline."""

    def seal(self: Operation, start: int, stop: int) -> None:
        original(self, (start + stop) // 2 if self.is_whole else start, stop)

    original = plant(Operation, "seal", seal)


def atomic_repeats_by_ordinal() -> None:
    """A repeat gets ids that follow on the first key's, as if one call had written all of them."""

    def repeat(records: Sequence[Any], digests: Sequence[bytes]) -> Any:
        found = original(records, digests)
        return [found[0] + place for place in range(len(found))] if isinstance(found, list) else found

    original = plant(flush_keys, "repeat_of_all", repeat)


def atomic_repeats_completed() -> None:
    """Of a call some of whose keys are remembered, the other items are written."""
    plant(FlushKeys, "add_all_or_none", FlushKeys.add_free)


BUGS: Final[Mapping[str, Bug]] = {
    "atomic-calls-divided": Bug(atomic_calls_divided, (20,)),
    "atomic-calls-halved": Bug(atomic_calls_halved, (16, 20), first_seed=5),
    "atomic-calls-half-answered": Bug(atomic_calls_half_answered, (16,), first_seed=2),
    "atomic-repeats-by-ordinal": Bug(atomic_repeats_by_ordinal, (2, 16)),
    "atomic-repeats-completed": Bug(atomic_repeats_completed, (16, 20)),
}
