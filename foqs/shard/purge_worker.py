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

from foqs.core.errors import FoqsError
from foqs.core.flush.intake import Intake
from foqs.core.flush.purge_markers import ClearPurgeMarker, DeletePurgedRows, PurgeMarker, PurgeMarkers
from foqs.core.flush.work import Work
from foqs.core.items.item import OrderKey, Row, State
from foqs.shard.shard_reader import ShardReader
from foqs.shard.writer import Writer

_STATE_ORDER: Final = (State.READY, State.DEFERRED, State.LEASED, State.DEAD)
"""What refills and timers would look at comes first."""


class _PurgeProgress:
    """How far the rows of a cut are deleted: the states that are left, and the last key of the first one's pages."""

    def __init__(self, purge_marker: PurgeMarker) -> None:
        self.purge_marker = purge_marker
        self.states_left = list(_STATE_ORDER)
        self.after: OrderKey | None = None


class PurgeWorker:
    """One task of a shard.

    Args:
        purge_markers: those that stand, as they are now.
        page_items: rows read and deleted at once.
        pause_s: after a failure.
    """

    def __init__(
        self,
        writer: Writer,
        intake: Intake,
        reader: ShardReader,
        purge_markers: PurgeMarkers,
        page_items: int,
        pause_s: float,
    ) -> None:
        self._writer = writer
        self._intake = intake
        self._reader = reader
        self._purge_markers = purge_markers
        self._page_items = page_items
        self._pause_s = pause_s
        self._wake = asyncio.Event()
        self._progress: dict[str, _PurgeProgress] = {}
        """The one that each namespace is at."""

    def on_purge_marked(self) -> None:
        """A cut was made."""
        self._wake.set()

    async def run(self) -> None:
        """Works whenever there is a cut, until the writer has ended; the next owner goes on."""
        while True:
            cut = self._purge_markers.next_to_purge()
            if cut is None:
                self._wake.clear()
                await self._wake.wait()
                continue
            walk = self._progress.get(cut.namespace)
            if walk is None or walk.purge_marker != cut:
                walk = self._progress[cut.namespace] = _PurgeProgress(cut)
            try:
                await self._purge_page(walk)
            except FoqsError:
                if self._writer.is_ended:
                    return
                await asyncio.sleep(self._pause_s)

    async def _purge_page(self, progress: _PurgeProgress) -> None:
        """Deletes the rows of a page; after the last one ends the cut, unless it has risen. Raises FoqsError."""
        cut = progress.purge_marker
        while progress.states_left:
            page = await self._read_page(cut, progress.states_left[0], progress.after)
            rows = [row for row in page if row.id <= cut.last_number]
            if rows:
                await self._submit_and_wait(partial(DeletePurgedRows, rows))
            if len(page) < self._page_items:
                progress.states_left.pop(0)
                progress.after = None
            else:
                progress.after = page[-1].order_key
            if page:
                return
        await self._submit_and_wait(partial(ClearPurgeMarker, cut))
        del self._progress[cut.namespace]

    async def _read_page(self, purge_marker: PurgeMarker, state: State, after: OrderKey | None) -> Sequence[Row]:
        topic, limit = (purge_marker.namespace, purge_marker.topic), self._page_items
        return await self._reader.read(
            purge_marker.namespace,
            lambda reads, past: reads.list_rows(past, topic, state, after, limit, with_payload=False),
            limit,
        )

    async def _submit_and_wait(self, make_work: Callable[[Callable[[], None]], Work]) -> None:
        """Returns when it is committed. Raises what happened to it."""
        done = asyncio.Event()
        work = make_work(done.set)
        self._intake.submit(work, is_internal=True)
        self._writer.wake()
        await done.wait()
        results: Sequence[Any] = work.results
        for result in results:
            if isinstance(result, FoqsError):
                raise result
