"""The state of a relay as its owner row holds it.

Holds `RelayState` and `Stamp`. Always true: decoding gives what was encoded. Text, so
that a person can read it. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from foqs_client.outbox.gaps import IdRange


@dataclass(slots=True, frozen=True)
class Stamp:
    """Rows that may have been sent, and the end of their keys by the clock of their shards."""

    keys_until_ms: int
    ids: tuple[int, ...]


@dataclass(slots=True, frozen=True)
class RelayState:
    """The facts that the next owner of an outbox must know.

    Attributes:
        read_to: all ids up to here were read, but for gaps.
        gaps: ids up to `read_to` that were not seen.
        stamps: one for each end of keys, with all rows that have it.
    """

    read_to: int = 0
    gaps: tuple[IdRange, ...] = ()
    stamps: tuple[Stamp, ...] = ()

    def encode(self) -> bytes:
        """Return the state as bytes."""
        stamps = [[stamp.keys_until_ms, _spans(stamp.ids)] for stamp in self.stamps]
        fields = {"read_to": self.read_to, "gaps": self.gaps, "stamps": stamps}
        return json.dumps(fields, separators=(",", ":")).encode()


def decode_state(data: bytes) -> RelayState:
    """Return the state of an owner row. Empty: no relay has worked on the outbox. Raises ValueError."""
    if not data:
        return RelayState()
    try:
        fields = json.loads(data)
        return RelayState(
            fields["read_to"],
            tuple((first, last) for first, last in fields["gaps"]),
            tuple(Stamp(until_ms, tuple(_ids(spans))) for until_ms, spans in fields["stamps"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not a state: {type(error).__name__}: {error}") from None


def _spans(ids: Iterable[int]) -> list[list[int]]:
    """Return the ids as [first, count] of consecutive ones, in order."""
    spans: list[list[int]] = []
    for id in sorted(ids):
        if spans and sum(spans[-1]) == id:
            spans[-1][1] += 1
        else:
            spans.append([id, 1])
    return spans


def _ids(spans: Iterable[Sequence[int]]) -> Iterable[int]:
    for first, count in spans:
        yield from range(first, first + count)
