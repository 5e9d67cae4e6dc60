"""What a host and the manager of shards tell each other.

`Coordinator` is what the keeper of a shard asks; `Holder` is what the agent
tells the host. Always true: between `assigned` and the next `dropped` the shard
is this host's as far as the plan was read; the database has the last word.
"""

from __future__ import annotations

from typing import Protocol


class CoordinatorFailed(Exception):
    """The coordinator could not answer; the text says why and what to do."""


class Coordinator(Protocol):
    """Issues epochs. No epoch is ever issued twice for two owners, across restarts too."""

    async def issue_epoch(self, shard: int, above: int) -> int:
        """An epoch for a takeover of `shard`, higher than any with which another host was told to take it over, and than `above`.

        It is recorded durably before this returns. May take as long as it takes somebody to plan.

        Args:
            above: the highest epoch that served here, or that a takeover found; 0 for none.

        Raises:
            CoordinatorFailed: it could not be recorded.
        """
        ...

    def report_state(self, shard: int, epoch: int, state: str) -> None:
        """What the keeper of a shard does now, a value of `Ownership`; the last word counts. Never blocks."""
        ...


class AssignmentListener(Protocol):
    """A host, as its agent sees it. Calls come on the event loop, in this order for each shard: assigned, release, dropped."""

    def on_assigned(self, shard: int, database: str) -> None:
        """Acquire, recover and serve it; the database is a name in the host's own configuration."""
        ...

    def on_release_requested(self, shard: int) -> None:
        """Drain it: take in nothing more, write what waits, and tell the coordinator that it is free."""
        ...

    def on_dropped(self, shard: int) -> None:
        """It is another's, or may be: stop serving it at once, whatever is under way."""
        ...

    def on_suspended(self) -> None:
        """Hand nothing out until `resumed`: the session may be ending."""
        ...

    def on_resumed(self) -> None:
        """The session lives."""
        ...
