"""Planted bugs of a cluster with several tiers, for `tier_administration`; see `planted`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from foqs.catalog.namespaces import Namespaces
from foqs.cluster.membership import Membership
from tests.simulation.planted import Bug
from tests.simulation.planting import plant


def tiers_ignored() -> None:
    """A host accepts items of the namespaces of every tier."""
    plant(Namespaces, "check_tier", lambda self, name: None)


def deleted_from_one_tier() -> None:
    """A namespace is deleted when the shards of one tier hold no item of it."""
    plant(Membership, "all_shards", Membership.tier_shards)


BUGS: Final[Mapping[str, Bug]] = {
    "tiers-ignored": Bug(tiers_ignored, (17,)),
    "deleted-from-one-tier": Bug(deleted_from_one_tier, (1,)),
}
