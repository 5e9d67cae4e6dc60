"""The rows that the journal of a shard has, as its owner remembers them: where they are, and their bytes.

Always true: the rows from the floor on are here, in order. The owner does not know the rows below the
floor that a former owner left, so its first trim has no lower bound. Changes only after a commit,
and while it is filled by a replay. Pure.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from foqs.core.flush.fence import Position
from foqs.core.flush.journal_rows import JournalRange

ROWS_PER_TRIM: Final = 64
"""The most rows that one flush trims, besides those that a former owner left below its floor."""
_BEGINNING: Final[Position] = (0, 0)


class JournalPositions:
    """The rows of one journal."""

    def __init__(self) -> None:
        self._rows: deque[tuple[Position, int]] = deque()
        self._trimmed_to: Position = _BEGINNING
        self.live_bytes = 0
        """The bytes of these rows."""

    def __len__(self) -> int:
        return len(self._rows)

    def add_row(self, position: Position, row_bytes: int) -> None:
        """Add the newest row."""
        self._rows.append((position, row_bytes))
        self.live_bytes += row_bytes

    def range_to_trim(self, floor: Position) -> JournalRange | None:
        """Return the rows that a flush with this floor trims; None: there are none."""
        rows = self._rows
        count = 0
        while count < len(rows) and count < ROWS_PER_TRIM and rows[count][0] < floor:
            count += 1
        if not count:
            return None
        end = rows[count][0] if count < len(rows) and rows[count][0] < floor else floor
        return JournalRange(self._trimmed_to, end)

    def on_trimmed(self, trimmed: JournalRange) -> None:
        """Forget rows that a flush has trimmed."""
        self._trimmed_to = trimmed.end
        while self._rows and self._rows[0][0] < trimmed.end:
            self.live_bytes -= self._rows.popleft()[1]
