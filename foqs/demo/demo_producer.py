"""The producer: reads each file once and enqueues an item for it, a hundred at a time.

Always true: what is enqueued stands in the ledger before the call is sent.
Knows nothing of consumers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from foqs.demo import run_files
from foqs.demo.ledger import RunLedger
from foqs.demo.run_files import FileEntry
from foqs_client import Client, Item

BATCH_ITEMS: Final = 100
ATTEMPTS_MAX: Final = 3


class DemoProducer:
    """Turns files into items.

    Args:
        topics: the topic of each file, by path.
    """

    def __init__(self, client: Client, ledger: RunLedger, topics: dict[str, str]) -> None:
        self._client = client
        self._ledger = ledger
        self._topics = topics

    async def run(self, planted_files: run_files.PlantedFiles) -> None:
        """Read the planted files, spoil them, enqueue them, and then enqueue all others.

        Raises:
            FoqsError: an item could not be enqueued.
        """
        planted = await asyncio.to_thread(self._read, planted_files.paths, planted=True)
        planted_files.spoil()
        await self._enqueue(planted)
        others = [path for path in self._topics if path not in planted_files.paths]
        for start in range(0, len(others), BATCH_ITEMS):
            await self._enqueue(await asyncio.to_thread(self._read, others[start : start + BATCH_ITEMS]))
        self._ledger.complete_at = asyncio.get_running_loop().time()

    def _read(self, paths: Sequence[str], planted: bool = False) -> list[FileEntry]:
        """Return the entries of the files that can be read; runs in a thread, as files may be large."""
        entries = []
        for path in paths:
            try:
                entries.append(run_files.read_file(path, self._topics[path], planted))
            except OSError as error:
                self._ledger.skipped[path] = error.strerror or type(error).__name__
        return entries

    async def _enqueue(self, entries: Sequence[FileEntry]) -> None:
        if not entries:
            return
        items = [
            Item(topic=entry.topic, payload=entry.payload, priority=entry.priority, attempts_max=ATTEMPTS_MAX)
            for entry in entries
        ]
        loop = asyncio.get_running_loop()
        sent_at = loop.time()
        self._ledger.enqueue_started(entries, sent_at)
        results = await self._client.enqueue(items)
        self._ledger.enqueue_calls_s.append(loop.time() - sent_at)
        self._ledger.enqueued(entries, [result.require() for result in results])
