"""The turns of groups that have left the memory in debt, of all fair topics of one host.

Always true: there are at most `DEBTS_MAX`. Beyond it, the oldest is forgotten. Knows no group and no topic.
"""

from __future__ import annotations

from typing import Final

DEBTS_MAX: Final = 10_000
"""Debts that a host remembers: four megabytes, if the names of the groups are as long as they may be."""


class GroupDebts:
    """The debts. `owner` is an object that stands for the turns of one topic."""

    def __init__(self) -> None:
        self._turns: dict[tuple[object, str], int] = {}

    def __len__(self) -> int:
        return len(self._turns)

    def __bool__(self) -> bool:
        return len(self) > 0

    def remember(self, owner: object, name: str, turn: int) -> None:
        """Remember the turn of a group that leaves the memory."""
        self._turns[owner, name] = turn
        if len(self._turns) > DEBTS_MAX:
            del self._turns[next(iter(self._turns))]

    def take_turn(self, owner: object, name: str) -> int:
        """Return the turn of a group, and forget it; 0 if it has no debt."""
        return self._turns.pop((owner, name), 0)

    def forget_passed(self, owner: object, served: int) -> None:
        """Forget the debts of an owner that are over: its turns were served up to here."""
        passed = [key for key, turn in self._turns.items() if key[0] is owner and turn <= served]
        for key in passed:
            del self._turns[key]
