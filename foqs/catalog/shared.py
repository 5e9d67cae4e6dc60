"""A catalog that several hosts share, as one document of the registry.

Always true: the document is replaced only where the registry still holds what
its version was compared with; one that cannot be read as a catalog is never
overwritten. What changes through any host is looked at as soon as the registry
says that anything did. Knows nothing of which registry it is.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from foqs.catalog.document import EMPTY, Document, Malformed, parse, render
from foqs.catalog.port import (
    CatalogConflict,
    CatalogFailed,
    CatalogFull,
    CatalogUnknown,
    CatalogUnreached,
    require_before,
)
from shardmgr.checks import DOCUMENT_BYTES_MAX
from shardmgr.registry import Entry, Registry, RegistryConflict, RegistryError, RegistryFailed, RegistryUnreached

NAME: Final = "catalog"
"""Of the document in the registry."""

_RETRY_S: Final = 1.0
_GATHER_S: Final = 0.01
"""Changes of so long are looked at together: hosts' entries are changes too, and there may be many."""


class RegistryCatalog:
    """See `port.Catalog`.

    Args:
        registry: open, or soon; until then the catalog cannot be read.
        bytes_max: of the document; more than the registry takes is as if it were that.
    """

    def __init__(self, registry: Registry, bytes_max: int) -> None:
        self._registry = registry
        self._bytes_max = min(bytes_max, DOCUMENT_BYTES_MAX)
        self._seen: tuple[Entry | None, int] | None = None
        """What was loaded last, and the version of the document in it."""
        self._parsed: tuple[bytes, Document] | None = None
        """The text that was read last, and what it says."""
        self._heard = asyncio.Event()
        registry.on_change(self._heard.set)

    async def load(self) -> Document:
        entry, document = await self._read()
        self._seen = entry, document.version
        return document

    async def replace(self, document: Document, before: Document | None = None) -> None:
        data = render(document).encode()
        if len(data) > self._bytes_max:
            raise CatalogFull(
                f"the catalog would have {len(data)} bytes, over {self._bytes_max}, the smaller of catalog.bytes_max "
                f"and the {DOCUMENT_BYTES_MAX} that the registry takes; delete what is not needed"
            )
        entry, stored = await self._read()
        require_before(stored, document, before)
        try:
            await self._registry.replace(NAME, data, None if entry is None else entry.version)
        except RegistryConflict as error:
            raise CatalogConflict(str(error)) from None
        except RegistryFailed as error:
            raise _failed(error) from None
        except RegistryError as error:
            raise CatalogUnknown(str(error)) from None

    async def changed(self, version: int) -> None:
        while self._seen is not None and self._seen[1] == version:
            self._heard.clear()
            try:
                if await self._registry.read(NAME) != self._seen[0]:
                    return
            except RegistryFailed:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._heard.wait(), _RETRY_S)
            else:
                await self._heard.wait()
                await asyncio.sleep(_GATHER_S)

    async def _read(self) -> tuple[Entry | None, Document]:
        try:
            entry = await self._registry.read(NAME)
        except RegistryFailed as error:
            raise _failed(error) from None
        if entry is None:
            return None, EMPTY
        if self._parsed is not None and self._parsed[0] == entry.data:
            return entry, self._parsed[1]
        try:
            document = parse(entry.data)
        except Malformed as error:
            raise CatalogFailed(
                f"the document {NAME!r} of the registry is damaged: {error}; delete it and import an export"
            ) from None
        self._parsed = entry.data, document
        return entry, document


def _failed(error: RegistryFailed) -> CatalogFailed:
    return (CatalogUnreached if isinstance(error, RegistryUnreached) else CatalogFailed)(str(error))
