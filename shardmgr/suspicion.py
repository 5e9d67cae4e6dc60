"""When the promoter of a database begins to replace its primary by itself.

Always true: it is suspected only while the promoter does not reach it and no acker hears
from it, for the whole grace period; and only if the promotion can be finished without a
word of an administrator. A wrong suspicion costs some seconds, and nothing that was
acknowledged. Pure; the time is an argument.
"""

from __future__ import annotations

from collections.abc import Mapping

from shardmgr.primary import LossPolicy, Primary, PrimaryState, ServerReport
from shardmgr.promotion import Promotion


class Suspicion:
    """Watches the primary of one database, round by round.

    Args:
        grace_ms: how long nobody must hear from the primary.
    """

    def __init__(self, grace_ms: int) -> None:
        self._grace_ms = grace_ms
        self._term = (0, "")
        """Term and server of the round before; 0: there was none."""
        self._since_ms: int | None = None
        """When nobody heard from the primary first; None: somebody does."""
        self._heard: dict[str, str] = {}
        """By acker, its `heard` in the round before."""

    def is_lost(self, entry: Primary, reports: Mapping[str, ServerReport], now_ms: int) -> bool:
        """Return whether the primary is to be replaced. Called once in each round."""
        if (entry.term, entry.server) != self._term:
            self._term, self._since_ms, self._heard = (entry.term, entry.server), None, {}
        if entry.server in reports or self._is_heard(entry, reports):
            self._since_ms = None
            return False
        if self._since_ms is None:
            self._since_ms = now_ms
        return now_ms - self._since_ms >= self._grace_ms and not missing_to_promote(entry, reports)

    def forget(self) -> None:
        """Forget earlier rounds, as when another promoter watches the primary meanwhile."""
        self._term = (0, "")

    def _is_heard(self, entry: Primary, reports: Mapping[str, ServerReport]) -> bool:
        """Return whether an acker has heard from the primary since the round before, and note what each has heard."""
        before, self._heard = self._heard, {name: reports[name].heard for name in entry.ackers if name in reports}
        return any(heard and heard != before.get(name) for name, heard in self._heard.items())


def missing_to_promote(entry: Primary, reports: Mapping[str, ServerReport]) -> tuple[str, ...]:
    """Return why a primary that may be lost is not replaced without an administrator; empty if it can be.

    Args:
        reports: those of the servers that are reached.
    """
    if entry.state is PrimaryState.PROMOTING:
        return ()  # nobody has used its term, and its position is known
    if entry.state not in (PrimaryState.SERVING, PrimaryState.DRAINING) or not entry.has_served:
        return (f"the database is {entry.state.value}",)
    if entry.policy is LossPolicy.ASYNC:
        return ("its policy is async: an administrator accepts the loss with foqs database promote",)
    if not entry.ackers:
        return ("the entry has no acker",)
    promotion = Promotion(entry, reports, shards_free=False)
    return promotion.unproven() or promotion.unacknowledged()
