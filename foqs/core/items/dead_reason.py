"""Why an item is dead, in words. The row tells: its attempts and how many it was allowed."""

from __future__ import annotations

from foqs.core.items.item import Row, State


def dead_reason(row: Row) -> str | None:
    """One sentence of a DEAD row; None of any other.

    An item that was given up in its last attempt is out of attempts all the same.
    """
    if row.state is not State.DEAD:
        return None
    if row.attempts_max and row.attempt >= row.attempts_max:
        return f"attempts exhausted: delivered {row.attempt} of at most {row.attempts_max} times without an ack"
    of = f" of {row.attempts_max}" if row.attempts_max else ""
    return f"given up by its consumer in attempt {row.attempt}{of}"
