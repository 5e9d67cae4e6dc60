"""A planted bug of durability; see `planted`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from foqs.store.in_memory.memory_store import MemoryStore
from tests.simulation.planted import Bug
from tests.simulation.planting import plant


def durability_checked_at_start_only() -> None:
    """A store that reconnects does not check the server's settings again."""
    plant(MemoryStore, "_check_durability", lambda self: None)


BUGS: Final[Mapping[str, Bug]] = {
    "durability-checked-at-start-only": Bug(durability_checked_at_start_only, (1,), first_seed=9),
}
