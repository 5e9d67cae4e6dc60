"""Deletes the rows that purge markers cover, page by page, and clears each marker when its rows are gone.

A page is read beside the flushes and deleted in the writer's flushes, in a lane
of its own, while the next page is read. Namespaces take turns page by page, so that many
or large purges of one namespace delay no other. Always true: a deleted row is covered by a
committed marker, and nothing else changes it, so a page is as it was read; a
marker is cleared only after the rows of every state were read since it was set, and
deleted. After a failure, all states of the marker are read again after a pause. Knows
nothing of the calls that purge, or of the rest of the shard's memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from foqs.core.flush.operation import Operation, OperationCaller
from foqs.core.flush.purge_markers import ClearPurgeMarker, DeletePurgedRows, PurgeMarker, PurgeMarkers
from foqs.core.items.item import OrderKey, Row, State
from foqs.shard.awaited_results import AwaitedResults
from foqs.shard.shard_reader import ShardReader
from foqs.shard.writer import Writer
from foqs_contract.errors import FoqsError

_STATE_ORDER: Final = (State.READY, State.DEFERRED, State.LEASED, State.DEAD)
"""The rows that refills and timers read come first."""


class _PurgeProgress:
    """The states of a marker that are not done, and the last key that was read of the first of them."""

    def __init__(self, purge_marker: PurgeMarker) -> None:
        self.purge_marker = purge_marker
        self.restart()

    def restart(self) -> None:
        """Read all states again: some of the rows that were read are not deleted."""
        self.states_left = list(_STATE_ORDER)
        self.after: OrderKey | None = None

    @property
    def is_at_start(self) -> bool:
        """Whether the next page is the first one."""
        return self.after is None and len(self.states_left) == len(_STATE_ORDER)


class PurgeWorker:
    """The task of one shard that deletes purged rows.

    Args:
        purge_markers: the shard's own, which change while this runs.
        page_items: rows read and deleted at once.
        pause_s: the pause after a failure.
    """

    def __init__(
        self,
        writer: Writer,
        reader: ShardReader,
        purge_markers: PurgeMarkers,
        page_items: int,
        pause_s: float,
    ) -> None:
        self._writer = writer
        self._reader = reader
        self._purge_markers = purge_markers
        self._page_items = page_items
        self._pause_s = pause_s
        self._wake = asyncio.Event()
        self._progress: dict[str, _PurgeProgress] = {}
        """The current marker of each namespace."""
        self._being_deleted: tuple[_PurgeProgress, asyncio.Future[list[Any]]] | None = None
        """The last page that was submitted, and the future of its results."""

    def on_purge_marked(self) -> None:
        """Wake the task, because a purge marker was set."""
        self._wake.set()

    async def run(self) -> None:
        """Work whenever there is a purge marker, until the writer has ended; the next owner continues."""
        while True:
            marker = self._purge_markers.next_to_purge()
            if marker is None:
                self._wake.clear()
                await self._wake.wait()
                continue
            progress = self._progress.get(marker.namespace)
            if progress is None or progress.purge_marker != marker:
                progress = self._progress[marker.namespace] = _PurgeProgress(marker)
            try:
                await self._purge_page(progress)
            except FoqsError:
                if self._writer.is_ended:
                    return
                await asyncio.sleep(self._pause_s)

    async def _purge_page(self, progress: _PurgeProgress) -> None:
        """Delete the rows of a page. After the last one, clear the marker unless it was raised. Raises FoqsError."""
        marker = progress.purge_marker
        if progress.is_at_start:
            await self._finish_deletion()  # else rows of it that are being deleted would be read again
        while progress.states_left:
            page = await self._read_page(marker, progress.states_left[0], progress.after)
            if len(page) < self._page_items:
                progress.states_left.pop(0)
                progress.after = None
            else:
                progress.after = page[-1].order_key
            rows = [row for row in page if row.id <= marker.last_number]
            if rows:
                await self._delete_rows(progress, rows)
            if page:
                return
        await self._finish_deletion()
        for result in await self._submit(partial(ClearPurgeMarker, marker)):
            if isinstance(result, FoqsError):
                raise result
        del self._progress[marker.namespace]

    async def _delete_rows(self, progress: _PurgeProgress, rows: Sequence[Row]) -> None:
        """Submit the deletion of a page, and wait for the one before: the next page is read meanwhile. Raises FoqsError."""
        deletion = self._submit(partial(DeletePurgedRows, rows))
        try:
            await self._finish_deletion()
        finally:
            self._being_deleted = progress, deletion

    async def _finish_deletion(self) -> None:
        """Wait until the last page that was submitted is deleted. Raises FoqsError: its marker is worked on from its beginning."""
        if self._being_deleted is None:
            return
        (progress, deletion), self._being_deleted = self._being_deleted, None
        for result in await deletion:
            if isinstance(result, FoqsError):
                progress.restart()
                raise result

    async def _read_page(self, purge_marker: PurgeMarker, state: State, after: OrderKey | None) -> Sequence[Row]:
        topic, limit = (purge_marker.namespace, purge_marker.topic), self._page_items
        return await self._reader.read(
            purge_marker.namespace,
            lambda reads, committed: reads.list_rows(committed, topic, state, after, limit, with_payload=False),
            limit,
        )

    def _submit(self, make_operation: Callable[[OperationCaller], Operation]) -> asyncio.Future[list[Any]]:
        """Submit an operation. Returns the future of its results."""
        awaited = AwaitedResults()
        self._writer.submit(make_operation(awaited), is_internal=True)
        return awaited.future
