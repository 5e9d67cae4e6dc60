"""A catalog of namespaces that a test can delay or let fail."""

from __future__ import annotations

import asyncio

from foqs.catalog.document import Document
from foqs.catalog.memory_catalog import MemoryCatalog
from foqs.queue.engine import Engine
from tests.support.engines import World


class GatedCatalog(MemoryCatalog):
    """A catalog whose replacements wait for `gate`, or fail with `failure` after they were done."""

    def __init__(self, document: Document) -> None:
        super().__init__(document)
        self.gate = asyncio.Event()
        self.gate.set()
        self.failure: Exception | None = None
        self.replacing = 0
        """The number of calls that found the gate closed."""

    async def replace(self, document: Document, expected: Document | None = None) -> None:
        self.replacing += not self.gate.is_set()
        await self.gate.wait()
        await super().replace(document, expected)
        if self.failure is not None:
            raise self.failure

    def restore(self, document: Document) -> None:
        """Replace the stored document by a copy, without notifying the hosts."""
        self.document = document

    def restore_and_notify(self, document: Document) -> None:
        """Replace the stored document by a copy, and notify the hosts."""
        self.restore(document)
        changed, self._change_event = self._change_event, asyncio.Event()
        changed.set()


async def install_gated_catalog(world: World) -> GatedCatalog:
    """In place of the world's catalog, with what that one holds."""
    catalog = world.catalog = GatedCatalog(await world.catalog.load())
    return catalog


async def pause(engine: Engine, topic: str, *, paused: bool = True) -> None:
    await engine.admin.pause("default", topic, asyncio.get_running_loop().time() + 5, paused=paused)
