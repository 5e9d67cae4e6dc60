"""Whether the commits of a primary wait for an ack that nobody sends: then its database accepts no writes.

Always true: only a primary at which hosts commit and that must wait for acks is blocked; one round alone blocks nothing, as
commits wait for a round trip all the time. It changes nothing of a promotion. Pure; the times are arguments.
"""

from __future__ import annotations

from typing import Final

from shardmgr.primary import LossPolicy, Primary, ServerReport

BLOCKED_MS: Final = 900
"""Commits that wait for this long without an ack are blocked. Promoters look each second."""


class BlockedCommits:
    """Watches the primary of one database, round by round."""

    def __init__(self) -> None:
        self._seen: tuple[int, str, int] | None = None
        """Term, server and count of acknowledged commits, since when commits wait; None: none does."""
        self._since_ms = 0

    def problem(self, entry: Primary, primary: ServerReport | None, asked_ms: int, answered_ms: int) -> str:
        """Return what is blocked and what to do; empty: commits get their acks, or it is not known. Called once in each round.

        Args:
            primary: the report of the entry's server; None: it is not reached.
            asked_ms, answered_ms: the server was read between these moments.
        """
        if primary is None or not entry.is_in_use or not self._would_wait(entry, primary):
            self._seen = None
            return ""
        seen = entry.term, entry.server, primary.acknowledged
        if seen != self._seen:
            self._seen, self._since_ms = seen, answered_ms
        if asked_ms - self._since_ms < BLOCKED_MS:
            return ""
        need = f"writes wait: commits of {entry.server} need an ack"
        if not entry.ackers:
            return f"{need}, and the entry names no replica; let one rejoin: foqs database rejoin"
        return f"{need} of {' or '.join(sorted(entry.ackers))}, and none comes; bring one of them back"

    @staticmethod
    def _would_wait(entry: Primary, primary: ServerReport) -> bool:
        """Return whether commits wait now, or would."""
        needs_acks = entry.policy is LossPolicy.SEMI_SYNC and primary.waits_for_acks and not primary.is_read_only
        return needs_acks and (primary.waiting_commits > 0 or primary.acknowledgers == 0)
