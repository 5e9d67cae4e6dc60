"""A catalog in memory, for tests and for hosts that store nothing.

It is the specification of the other catalogs: each call is one step of the event loop.
"""

from __future__ import annotations

import asyncio
from typing import Final

from foqs.catalog.document import EMPTY_DOCUMENT, Document, render_stored
from foqs.catalog.port import CatalogFull, check_replaceable

BYTES_MAX: Final = 1_000_000


class MemoryCatalog:
    """A catalog in memory; see `port.Catalog`.

    Attributes:
        document: the stored document. Tests assign it to replace it without a notice to the hosts.
    """

    def __init__(self, document: Document = EMPTY_DOCUMENT, bytes_max: int = BYTES_MAX) -> None:
        self.document = document
        self.bytes_max = bytes_max
        self._change_event = asyncio.Event()

    async def load(self) -> Document:
        return self.document

    async def replace(self, document: Document, expected: Document | None = None) -> None:
        check_replaceable(self.document, document, expected)
        size = len(render_stored(document))
        if size > self.bytes_max:
            raise CatalogFull(
                f"the catalog would have {size} bytes; at most {self.bytes_max} are allowed; delete what is not needed"
            )
        self.document = document
        changed, self._change_event = self._change_event, asyncio.Event()
        changed.set()

    async def wait_for_change(self, known_version: int) -> None:
        while self.document.version == known_version:
            await self._change_event.wait()
