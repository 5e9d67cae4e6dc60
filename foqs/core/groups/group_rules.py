"""What the policy of a topic says about the groups of its items.

Always true: rules without a limit and without turns say nothing, so no topic has them. Knows no group and no catalog.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

NO_WEIGHTS: Final[Mapping[str, int]] = MappingProxyType({})
"""All groups have the weight 1."""


class Fairness(enum.Enum):
    """What the groups of a fair topic share. The values are stored."""

    ITEMS = "items"
    """Each delivery counts the same."""
    TIME = "time"
    """A delivery counts as long as its lease was held."""


@dataclass(slots=True, frozen=True)
class GroupRules:
    """The rules of one topic.

    Attributes:
        leases_max: how many items of one group may be leased at once; 1: strict order; None: any number.
        fair: groups take turns within each priority, and what counts; None: items come in their order.
        weights: of groups of a fair topic that have another weight than 1.
    """

    leases_max: int | None = None
    fair: Fairness | None = None
    weights: Mapping[str, int] = field(default_factory=lambda: NO_WEIGHTS)
