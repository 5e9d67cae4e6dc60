"""The store of a shard that this host owns, and the two ways in which its writer loses it."""

from __future__ import annotations

from dataclasses import dataclass

from foqs.core.flush.fence import Owner
from foqs.store.port import Store, StoreError


class ShardLost(Exception):
    """This host must not write to the shard any more. `owner` is the owner row as last seen."""

    def __init__(self, reason: str, owner: Owner | None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.owner = owner


class OwnershipGivenUp(Exception):
    """This ownership is unusable, although no other host has taken the shard. It can be taken over again."""


@dataclass(slots=True, frozen=True)
class OwnedStore:
    """The store of a shard: open, and taken over by `owner`."""

    shard: int
    store: Store
    owner: Owner

    async def try_read_owner(self) -> Owner | None:
        """Return the owner row as it is now; None if the database does not answer."""
        try:
            return await self.store.read_owner()
        except StoreError:
            return None
