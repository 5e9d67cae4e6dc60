"""The rows that the journal of a shard has, as its owner remembers them: where they are, and their bytes.

Always true: all rows of the table are here, in order, those below the floor that a former owner left, too.
Of these only the events count as bytes. Changes only after a commit, and while it is filled by a replay. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice, takewhile
from typing import Final

from foqs.core.flush.fence import Position
from foqs.core.flush.journal_rows import JournalRange

ROWS_PER_TRIM: Final = 64
"""The most rows that one flush trims."""


class JournalPositions:
    """The rows of one journal."""

    def __init__(self) -> None:
        self._rows: deque[tuple[Position, int]] = deque()
        """Their positions, and the bytes of their events."""
        self._payload_bytes: dict[Position, int] = {}
        """The bytes of the payloads of each row that has some."""
        self.live_bytes = 0
        """The bytes of these rows."""

    def __len__(self) -> int:
        return len(self._rows)

    def add_row(self, position: Position, events_bytes: int, payload_bytes: int = 0) -> None:
        """Add the newest row."""
        self._rows.append((position, events_bytes))
        if payload_bytes:
            self._payload_bytes[position] = payload_bytes
        self.live_bytes += events_bytes + payload_bytes

    def range_to_trim(self, floor: Position) -> JournalRange | None:
        """Return the rows that a flush with this floor trims; None: there are none."""
        rows = self._rows
        count = self._count_below(floor)
        if not count:
            return None
        end = rows[count][0] if count < len(rows) and rows[count][0] < floor else floor
        return JournalRange(rows[0][0], end)

    def bytes_to_trim(self, floor: Position) -> int:
        """Return the bytes of the rows that a flush with this floor trims."""
        payload_bytes = self._payload_bytes
        rows = islice(self._rows, self._count_below(floor))
        return sum([events_bytes + payload_bytes.get(position, 0) for position, events_bytes in rows])

    def next_payloads(self, rows_max: int) -> list[tuple[Position, int]]:
        """Return rows that have payloads, and the bytes of these. Further calls return all others first."""
        found = [*islice(self._payload_bytes.items(), rows_max)]
        for position, payload_bytes in found:
            del self._payload_bytes[position]
            self._payload_bytes[position] = payload_bytes
        return found

    def on_trimmed(self, trimmed: JournalRange) -> None:
        """Forget rows that a flush has trimmed."""
        while self._rows and self._rows[0][0] < trimmed.end:
            position, events_bytes = self._rows.popleft()
            self.live_bytes -= events_bytes + self._payload_bytes.pop(position, 0)

    def on_emptied(self, positions: Iterable[Position]) -> None:
        """Note that rows have lost their payloads."""
        for position in positions:
            self.live_bytes -= self._payload_bytes.pop(position, 0)

    def _count_below(self, floor: Position) -> int:
        return sum(1 for _ in takewhile(lambda row: row[0] < floor, islice(self._rows, ROWS_PER_TRIM)))
