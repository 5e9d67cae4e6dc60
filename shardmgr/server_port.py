"""The interface between a promoter and the servers of a database.

Always true: a connection that is made ends all earlier ones of promoters at the same
server, so each server has carried out the steps of the newest promoter last. Knows
neither SQL nor the entry.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from shardmgr.loss_report import LastFlush
from shardmgr.primary import ServerReport
from shardmgr.promotion import SendCommand


class ServerFailed(Exception):
    """A server was not reached, or refused a command: the text says why, and what to do. A later call may succeed."""


class ServerConnection(Protocol):
    """A promoter's connection to one server. After a `ServerFailed` it may be of no use any more: see `is_usable`."""

    @property
    def server_id(self) -> int:
        """The number by which the server names itself."""
        ...

    @property
    def is_usable(self) -> bool:
        """Whether the connection has not ended. Another promoter ends it."""
        ...

    async def standing(self) -> str:
        """Return when the server was started, and how often its reception was since. Raises ServerFailed."""
        ...

    async def report(self, standing: str) -> ServerReport:
        """Return what the server is and has, read in the order of the report's attributes.

        Args:
            standing: as it was before; the report has it only if it is still the same.

        Raises:
            ServerFailed: it is not reached any more, or is of no use for a promotion.
        """
        ...

    async def last_flushes(self, shards: Collection[int]) -> Sequence[LastFlush]:
        """Return the last flush of each of these shards that has tables here, by number, or why it cannot be read.

        Raises:
            ServerFailed: the server does not answer.
        """
        ...

    async def carry_out(self, step: SendCommand) -> None:
        """Carry a step out. It is bounded to some seconds.

        Raises:
            ServerFailed: it may have been carried out, or not: read the server again.
        """
        ...

    async def end_reception(self, replica: str) -> None:
        """Check that another server cannot receive from this one, and end the connections over which it does.

        Raises:
            ServerFailed: its account is not locked here, or this was not found out.
        """
        ...

    async def refuses(self, replica: str) -> bool:
        """Return whether the account with which another server receives from this one is locked here. Raises ServerFailed."""
        ...

    def close(self) -> None:
        """End the connection at once. Safe to repeat."""
        ...


class DatabaseServers(Protocol):
    """The servers of one database, as this host reaches them."""

    @property
    def names(self) -> Collection[str]:
        """The names of the servers whose addresses this host knows."""
        ...

    async def connect(self, name: str) -> ServerConnection:
        """Connect to a server, and end the connections of all other promoters there.

        Raises:
            ServerFailed: it is not reached, or the connection of another promoter does not end.
        """
        ...
