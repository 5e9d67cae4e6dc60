"""Whether a relay works on an outbox, as others see it: by the number of its rounds. Calls block.

Always true: nothing is written; no clock of the database is read.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from foqs_client.outbox import relay_sql
from foqs_client.outbox.outbox_connection import OutboxConnection

WATCH_S: Final = 3.0
"""A relay that works writes a round at least every two seconds."""
_LOOK_S: Final = 0.2


@dataclass(slots=True, frozen=True)
class OwnerView:
    """The owner of an outbox. Epoch 0: no relay has ever worked on it."""

    epoch: int
    round: int
    is_working: bool


def watch_owner(tables: OutboxConnection) -> OwnerView:
    """Return the owner, after a round was written or `WATCH_S`. Raises TablesUnavailable."""
    first = _read(tables)
    for _ in range(round(WATCH_S / _LOOK_S)):
        time.sleep(_LOOK_S)
        epoch, number = _read(tables)
        if (epoch, number) != first:
            return OwnerView(epoch, number, is_working=True)
    return OwnerView(*first, is_working=False)


def _read(tables: OutboxConnection) -> tuple[int, int]:
    found = tables.query(relay_sql.READ_OWNER)
    return (int(found[0][0]), int(found[0][2])) if found else (0, 0)
