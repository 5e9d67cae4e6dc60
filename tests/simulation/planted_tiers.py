"""Bugs of a cluster of several tiers to plant, to show that `tiers` would find them; as `planted`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from foqs.catalog.namespaces import Namespaces
from foqs.cluster.membership import Membership
from tests.simulation.planted import Bug


def tiers_ignored() -> None:
    """A host takes in items of every tier's namespaces."""
    Namespaces.check_tier = lambda self, name: None  # type: ignore[method-assign]


def deleted_from_one_tier() -> None:
    """A namespace is gone when the shards of one tier hold nothing of it."""
    Membership.all_shards = Membership.tier_shards  # type: ignore[method-assign]


BUGS: Final[Mapping[str, Bug]] = {
    "tiers-ignored": Bug(tiers_ignored, (17,)),
    "deleted-from-one-tier": Bug(deleted_from_one_tier, (1,)),
}
