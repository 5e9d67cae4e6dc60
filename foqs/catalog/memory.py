"""A catalog that lives as long as its object: for tests, and for a host that keeps nothing.

The specification of the others: everything happens in one turn of the loop.
"""

from __future__ import annotations

import asyncio
from typing import Final

from foqs.catalog.document import EMPTY, Document, render
from foqs.catalog.port import CatalogFull, require_before

BYTES_MAX: Final = 1_000_000


class MemoryCatalog:
    """See `port.Catalog`."""

    def __init__(self, document: Document = EMPTY, bytes_max: int = BYTES_MAX) -> None:
        self._document = document
        self._bytes_max = bytes_max
        self._turned = asyncio.Event()

    async def load(self) -> Document:
        return self._document

    async def replace(self, document: Document, before: Document | None = None) -> None:
        require_before(self._document, document, before)
        size = len(render(document).encode())
        if size > self._bytes_max:
            raise CatalogFull(f"the catalog would have {size} bytes; at most {self._bytes_max} are allowed")
        self._document = document
        turned, self._turned = self._turned, asyncio.Event()
        turned.set()

    async def changed(self, version: int) -> None:
        while self._document.version == version:
            await self._turned.wait()
