"""The interface between a host and the shard manager.

Supervisors of shards call the `Coordinator`; the agent calls the host as its
`AssignmentListener`. Always true: between `on_assigned` and the next `on_dropped`
the plan, as last read, assigns the shard to this host; the database decides.
"""

from __future__ import annotations

from typing import Protocol

from foqs_contract.printable_text import printable
from shardmgr.primary import Primary


class CoordinatorFailed(Exception):
    """The coordinator could not answer; the text says why and what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))  # it may name a file, and the name of a file may be any bytes


class Coordinator(Protocol):
    """Issues epochs. No epoch is ever issued to two owners, even across restarts.

    An epoch is used when the state OWNED was reported with it. Before, its host may get it again.
    """

    async def issue_epoch(self, shard: int, above: int) -> int:
        """Return an epoch for a takeover of `shard`, not used, above `above` and above any epoch of another host.

        It is recorded durably before this returns. This may take as long as the next plan.

        Args:
            above: the highest epoch that was used here, or that a takeover found; 0 for none.

        Raises:
            CoordinatorFailed: it could not be recorded.
        """
        ...

    def report_state(self, shard: int, epoch: int, state: str) -> None:
        """Report the state of a shard, a value of `OwnershipState`. The last report counts. Never blocks."""
        ...


class AssignmentListener(Protocol):
    """A host, as its agent sees it. Calls come on the event loop; for each shard: assigned, release requested, dropped."""

    def on_assigned(self, shard: int, database: str, primary: Primary | None) -> None:
        """Acquire, recover and serve the shard.

        Args:
            database: a name in the host's configuration.
            primary: the entry that says which server of the database to use; None: it has no entry, and one server.
        """
        ...

    def on_release_requested(self, shard: int) -> None:
        """Hand the shard over: accept nothing more, write what waits, and report the state FREE."""
        ...

    def on_dropped(self, shard: int) -> None:
        """Stop serving the shard at once: another host may own it."""
        ...

    def on_suspended(self) -> None:
        """Deliver nothing until `on_resumed`: the registry session may be ending."""
        ...

    def on_resumed(self) -> None:
        """Deliver again: the registry session lives."""
        ...
