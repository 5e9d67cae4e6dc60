"""Deletes the rows of a shard's cuts, page by page, and ends each cut when its rows have gone.

One page at a time, and namespaces take turns with their pages, so that one with
many or large purges holds up nobody else's: a page is read beside the flushes
and deleted in the writer's flushes, in a lane of its own with a small share.
Always true: what is deleted is covered by a cut that is committed, and nobody
else changes it, so a page is as it was read; a cut ends only when every state was
walked through since it was made. Whatever fails is tried again after a pause.
Knows nothing of who purges, or of what else the shard remembers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from foqs.core.cuts import Cut, Cuts, EndCut, PurgeRows
from foqs.core.errors import FoqsError
from foqs.core.intake import Intake
from foqs.core.item import Key, Row, State
from foqs.core.work import Work
from foqs.shard.reader import Reader
from foqs.shard.writer import Writer

_ORDER: Final = (State.READY, State.DEFERRED, State.LEASED, State.DEAD)
"""What refills and timers would look at comes first."""


class _Walk:
    """How far the rows of a cut are deleted: the states that are left, and the last key of the first one's pages."""

    def __init__(self, cut: Cut) -> None:
        self.cut = cut
        self.states = list(_ORDER)
        self.after: Key | None = None


class Purger:
    """One task of a shard.

    Args:
        cuts: those that stand, as they are now.
        page_items: rows read and deleted at once.
        pause_s: after a failure.
    """

    def __init__(
        self,
        writer: Writer,
        intake: Intake,
        reader: Reader,
        cuts: Cuts,
        page_items: int,
        pause_s: float,
    ) -> None:
        self._writer = writer
        self._intake = intake
        self._reader = reader
        self._cuts = cuts
        self._page_items = page_items
        self._pause_s = pause_s
        self._wake = asyncio.Event()
        self._walks: dict[str, _Walk] = {}
        """The one that each namespace is at."""

    def wake(self) -> None:
        """A cut was made."""
        self._wake.set()

    async def run(self) -> None:
        """Works whenever there is a cut, until the writer has ended; the next owner goes on."""
        while True:
            cut = self._cuts.next()
            if cut is None:
                self._wake.clear()
                await self._wake.wait()
                continue
            walk = self._walks.get(cut.namespace)
            if walk is None or walk.cut != cut:
                walk = self._walks[cut.namespace] = _Walk(cut)
            try:
                await self._step(walk)
            except FoqsError:
                if self._writer.ended:
                    return
                await asyncio.sleep(self._pause_s)

    async def _step(self, walk: _Walk) -> None:
        """Deletes the rows of a page; after the last one ends the cut, unless it has risen. Raises FoqsError."""
        cut = walk.cut
        while walk.states:
            page = await self._read(cut, walk.states[0], walk.after)
            rows = [row for row in page if row.id <= cut.last]
            if rows:
                await self._write(partial(PurgeRows, rows))
            if len(page) < self._page_items:
                walk.states.pop(0)
                walk.after = None
            else:
                walk.after = page[-1].key
            if page:
                return
        await self._write(partial(EndCut, cut))
        del self._walks[cut.namespace]

    async def _read(self, cut: Cut, state: State, after: Key | None) -> Sequence[Row]:
        topic, limit = (cut.namespace, cut.topic), self._page_items
        return await self._reader.once(
            cut.namespace, lambda reads, past: reads.listed(past, topic, state, after, limit, payload=False), limit
        )

    async def _write(self, make: Callable[[Callable[[], None]], Work]) -> None:
        """Returns when it is committed. Raises what happened to it."""
        done = asyncio.Event()
        work = make(done.set)
        self._intake.submit(work, internal=True)
        self._writer.poke()
        await done.wait()
        results: Sequence[Any] = work.results
        for result in results:
            if isinstance(result, FoqsError):
                raise result
