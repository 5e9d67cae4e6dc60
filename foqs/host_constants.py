"""The constants of a host that tests replace.

They are no options: nobody could choose them by something that a host shows. A host in a test has shorter times,
which it gets as an argument.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from foqs.shard.shard_constants import ShardConstants


@dataclass(slots=True, frozen=True)
class HostConstants:
    """The constants of the parts of a host."""

    shard: ShardConstants = field(default_factory=ShardConstants)


HOST_CONSTANTS: Final = HostConstants()
"""Those of a host that no test has started."""
