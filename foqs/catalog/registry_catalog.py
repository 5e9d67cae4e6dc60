"""A catalog that several hosts share, as one document of the registry.

Always true: the document is replaced only if the registry still holds the entry
that was compared; an entry that is not a readable catalog is never overwritten.
The entry is read again as soon as the registry reports any change. Knows nothing
of the kind of registry.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from foqs.catalog.document import EMPTY_DOCUMENT, Document, MalformedDocument, NewerDocument, parse, render_stored
from foqs.catalog.port import (
    CatalogConflict,
    CatalogFailed,
    CatalogFull,
    CatalogUnknownOutcome,
    CatalogUnreachable,
    check_replaceable,
)
from shardmgr.registry.port import (
    DOCUMENT_BYTES_MAX,
    Registry,
    RegistryConflict,
    RegistryError,
    RegistryFailed,
    RegistryUnreachable,
    VersionedDocument,
)

DOCUMENT_NAME: Final = "catalog"
"""The name of the document in the registry."""

_RETRY_S: Final = 1.0
_COALESCE_S: Final = 0.01
"""Changes of the registry within this time cause one read. Changes of hosts' entries count too, and there may be many."""
_PARSE_PAUSES: Final = 10
"""The pause before a read is this many times as long as the last document took to parse: another host may change a large
one without a pause."""


class RegistryCatalog:
    """A catalog in one document of the registry; see `port.Catalog`.

    Args:
        registry: the registry. Until it is open, the catalog cannot be read.
        bytes_max: limit of the document; the limit of the registry applies too.
    """

    def __init__(self, registry: Registry, bytes_max: int) -> None:
        self._registry = registry
        self.bytes_max = min(bytes_max, DOCUMENT_BYTES_MAX)
        self._last_loaded: tuple[VersionedDocument | None, int] | None = None
        """The entry that was loaded last, and the version of its document."""
        self._last_parsed: tuple[bytes, Document] | None = None
        """The text that was parsed or stored last, and its document."""
        self._parse_s = 0.0
        """How long the last document took to parse."""
        self._change_event = asyncio.Event()
        registry.subscribe(self._change_event.set)

    async def load(self) -> Document:
        entry, document = await self._read()
        self._last_loaded = entry, document.version
        return document

    async def replace(self, document: Document, expected: Document | None = None) -> None:
        data = render_stored(document)
        if len(data) > self.bytes_max:
            raise CatalogFull(
                f"the catalog would have {len(data)} bytes, over {self.bytes_max}, the smaller of catalog.bytes_max "
                f"and the {DOCUMENT_BYTES_MAX} that the registry accepts; delete what is not needed"
            )
        entry, stored = await self._read()
        check_replaceable(stored, document, expected)
        try:
            await self._registry.replace(DOCUMENT_NAME, data, None if entry is None else entry.version)
        except RegistryConflict as error:
            raise CatalogConflict(str(error)) from None
        except RegistryFailed as error:
            raise _catalog_failed(error) from None
        except RegistryError as error:
            raise CatalogUnknownOutcome(str(error)) from None
        self._last_parsed = data, document

    async def wait_for_change(self, known_version: int) -> None:
        while self._last_loaded is not None and self._last_loaded[1] == known_version:
            self._change_event.clear()
            try:
                if await self._registry.read(DOCUMENT_NAME) != self._last_loaded[0]:
                    return
            except RegistryFailed:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._change_event.wait(), _RETRY_S)
            else:
                await self._change_event.wait()
                await asyncio.sleep(max(_COALESCE_S, _PARSE_PAUSES * self._parse_s))

    async def _read(self) -> tuple[VersionedDocument | None, Document]:
        try:
            entry = await self._registry.read(DOCUMENT_NAME)
        except RegistryFailed as error:
            raise _catalog_failed(error) from None
        if entry is None:
            return None, EMPTY_DOCUMENT
        if self._last_parsed is not None and self._last_parsed[0] == entry.data:
            return entry, self._last_parsed[1]
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        try:
            document = parse(entry.data)
        except NewerDocument as error:
            raise CatalogFailed(
                f"the document {DOCUMENT_NAME!r} of the registry was written by a newer version: {error}; start that version, and keep the document"
            ) from None
        except MalformedDocument as error:
            raise CatalogFailed(
                f"the document {DOCUMENT_NAME!r} of the registry is damaged: {error}; delete it and import an export"
            ) from None
        self._parse_s = loop.time() - begun_s
        self._last_parsed = entry.data, document
        return entry, document


def _catalog_failed(error: RegistryFailed) -> CatalogFailed:
    return (CatalogUnreachable if isinstance(error, RegistryUnreachable) else CatalogFailed)(str(error))
