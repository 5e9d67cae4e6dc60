"""The server of a compared queue, as a stage uses it.

Always true: it is empty after `set_up`, and every acknowledged write is durable.
Knows no system.
"""

from __future__ import annotations

from abc import abstractmethod

from foqs.dev.server_process import ServerProcess


class Peer(ServerProcess):
    """One server.

    Attributes:
        place: what a session connects to.
        version: of the server, after `set_up`.
    """

    place: str
    version: str

    @abstractmethod
    def fill(self, count: int, payload_bytes: int) -> None:
        """Write `count` items of topic t0, numbered from 0, quickly; they are durable at the end."""

    @abstractmethod
    def waiting(self) -> int:
        """Return the number of items that are not done. No consumer may be connected."""
