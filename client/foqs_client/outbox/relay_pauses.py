"""How long a relay waits for what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(slots=True, frozen=True)
class RelayPauses:
    """How long a relay waits, in seconds.

    Attributes:
        takeover_s: a round number that is unchanged for so long has no living owner.
        owner_read_s: between two looks at the owner row, while another relay owns it.
        round_s: a living relay writes a round at least this often.
        page_s, page_s_max: after an empty page, doubled up to the second.
        again_s: before rows in doubt are sent again, parked rows are read again, or forgotten rows are swept.
        sweep_s: between two sweeps that nothing asks for.
        keys_s: between two questions for the end of keys.
        figures_s: between two counts of the rows of the outbox.
        stop_s: how long a stop waits for replies.
    """

    takeover_s: float = 10.0
    owner_read_s: float = 1.0
    round_s: float = 2.0
    page_s: float = 0.02
    page_s_max: float = 0.5
    again_s: float = 1.0
    sweep_s: float = 300.0
    keys_s: float = 30.0
    figures_s: float = 5.0
    stop_s: float = 30.0


DEFAULT_PAUSES: Final = RelayPauses()
