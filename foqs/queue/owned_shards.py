"""The shards that this host should own, for calls that name a shard or need all of them.

Always true: a call gets the shard itself, or the error that says where to ask or when to
try again. Knows nothing of what is done with a shard.
"""

from __future__ import annotations

from collections.abc import Collection

from foqs.queue.tier import Tier
from foqs.shard.host_shards import HostShards
from foqs.shard.shard import OwnedShard
from foqs_contract.errors import HANDOVER_RETRY_MS, NotOwner, Unavailable


class OwnedShards:
    """The shards of one host.

    Args:
        tier: names the owners of the shards of other hosts.

    Attributes:
        served: the shards that this host serves, by number; changes over time.
        statuses: the status of each shard that this host should own.
    """

    def __init__(self, shards: HostShards, tier: Tier) -> None:
        self.served = shards.served
        self.statuses = shards.statuses
        self._tier = tier

    def get(self, number: int) -> OwnedShard:
        """Return a shard that is served here. Raises `NotOwner`, `Unavailable`."""
        shard = self.served.get(number)
        if shard is not None:
            return shard
        if number in self.statuses:
            raise Unavailable(f"shard {number} is recovering; try again", retry_after_ms=HANDOVER_RETRY_MS)
        raise self.not_owner_error(number)

    def not_owner_error(self, number: int) -> NotOwner:
        """Return the error for a shard that this host should not own. It names the owner if the tier knows one."""
        return NotOwner(
            f"this host does not own shard {number}; call its owner, which getRouting names",
            owner=self._tier.owner_of(number),
        )

    def get_all(self, numbers: Collection[int] | None) -> list[OwnedShard]:
        """Return these shards by number, or all that this host should own. Raises `NotOwner`, `Unavailable` for one that is not served."""
        return [self.get(number) for number in sorted(self.statuses if numbers is None else set(numbers))]

    def serving(self) -> list[OwnedShard]:
        """Return the shards that accept requests."""
        return [shard for shard in self.served.values() if shard.is_serving]
