"""Requests flushes for the journal of a shard, so that rows are written back and the journal is trimmed while no call comes.

Always true: while the store journals, the next request comes no later than the journal needs it. Before a
hand-over the shard writes back what the next owner would replay, while it still serves. Gives items up whose rows
cannot be written. If requests achieve nothing, they become fewer. Knows nothing else of what such a flush writes: the
store adds that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from foqs.core.flush.operation import Events
from foqs.core.items.life import Event, EventKind
from foqs.core.journal.journal_status import JournalStatus
from foqs.shard.awaited_results import AwaitedResults
from foqs.shard.writer import Writer
from foqs.store.port import Store

_PAUSE_BETWEEN_FLUSHES_S: Final = 0.02
_LOOK_INTERVAL_S: Final = 1.0
"""How often it looks at the journal: a read may have found what only a flush can judge."""
_PAUSE_MAX_S: Final = 5.0
"""The pause after requests that achieved nothing, because the database refuses what they write."""
HANDOVER_S: Final = 2.0
"""How long a shard that is handed over still serves, at most, to write rows back."""


async def run_write_back(writer: Writer, store: Store) -> None:
    """Request flushes whenever the journal needs one, until the writer has ended. Returns if the store does not journal."""
    pause_s = _PAUSE_BETWEEN_FLUSHES_S
    former: JournalStatus | None = None
    while not writer.is_ended and (status := store.journal) is not None:
        is_needed = bool(status.given_up) or status.next_flush_ms <= 0
        if is_needed and former is not None and (status.steps, status.given_up) == (former.steps, former.given_up):
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)
        else:
            pause_s = _PAUSE_BETWEEN_FLUSHES_S
        former = status
        if status.given_up:
            await _give_up(writer, status.given_up)
        elif is_needed:
            writer.request_flush()
        await asyncio.sleep(max(min(status.next_flush_ms / 1000, _LOOK_INTERVAL_S), pause_s))


async def _give_up(writer: Writer, numbers: Sequence[int]) -> None:
    results = AwaitedResults()
    writer.submit(Events("", [Event(EventKind.GIVE_UP, number) for number in numbers], results), is_internal=True)
    await results.future


async def write_back_before_hand_over(writer: Writer, store: Store, close: Callable[[], None]) -> None:
    """Write rows back while the shard serves, until few are left or `HANDOVER_S` have passed. Then call `close`."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + HANDOVER_S
    store.begin_hand_over()
    while (status := store.journal) is not None and not status.may_be_handed_over and loop.time() < end_s:
        writer.request_flush()
        await asyncio.sleep(_PAUSE_BETWEEN_FLUSHES_S)
        if writer.is_ended:
            return
    close()
