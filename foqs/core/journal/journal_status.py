"""The journal of an ownership in numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class JournalStatus:
    """The figures of one moment.

    Attributes:
        dirty_items: items whose rows are not current.
        memory_bytes: their size in memory, with payloads, metadata and trace contexts.
        rows, live_bytes: the rows of the journal that are not trimmed yet, and their bytes.
        written_back: rows that were written or deleted by write-back since the takeover.
        lag_ms: for how long the oldest item has been due to be written back.
        replay_ms: the duration of the replay at the takeover.
        refused: items whose rows the database has refused to be written back, or whose payloads the journal lacks.
        given_up: those of them that the shard must make DEAD, because that stays so.
        may_be_handed_over: whether the next owner replays what is left, rather than wait until it is written back.
        next_flush_ms: in how many milliseconds the journal needs a flush, if none is written anyway.
        steps: how often a flush has written rows back, found out which row is refused, or trimmed the journal. If it
            stays, further flushes at once do not help.
    """

    dirty_items: int
    memory_bytes: int
    rows: int
    live_bytes: int
    written_back: int
    lag_ms: int
    replay_ms: int
    refused: int
    given_up: tuple[int, ...]
    may_be_handed_over: bool
    next_flush_ms: int
    steps: int
