"""Where the catalog's document is kept, as the service sees it.

Always true: a document is replaced as a whole, and only by the one whose
version follows the version that is stored, in place of the one that its author
had seen, so no change overwrites another. What is stored is the truth, also when its version is
lower than one that was seen before: somebody has restored a copy. Nothing here
says file: implementations are `local` (a file, for one host), `shared` (the
registry, for several) and `memory` (for tests); one contract suite holds them,
tests/contract/test_catalog.py.
"""

from __future__ import annotations

from typing import Protocol

from foqs.catalog.document import Document


class CatalogError(Exception):
    """What a catalog reports. The text is for a person: what is wrong, where, what to do."""


class CatalogFailed(CatalogError):
    """It cannot be read or written now, or what is stored is damaged. Nothing was written, and nothing will be."""


class CatalogUnreachable(CatalogFailed):
    """Who keeps it cannot be asked now, or did not answer; asked again later, it may."""


class CatalogConflict(CatalogError):
    """What is stored is not the version before this document's. Nothing was written: load, and change that."""


class CatalogFull(CatalogError):
    """The document is larger than the limit. Nothing was written."""


class CatalogUnknownOutcome(CatalogError):
    """It may have been written, or may yet be. `load` tells what is there."""


class Catalog(Protocol):
    """One document. Calls may run at the same time."""

    async def load(self) -> Document:
        """What is stored; `EMPTY_DOCUMENT`, with version 0, where nothing was ever. Raises `CatalogFailed`."""
        ...

    async def replace(self, document: Document, expected: Document | None = None) -> None:
        """Stores it, durably, in place of the one with the version before.

        Args:
            expected: what must be stored. A copy that was restored may have the same version and another content. None: any
                with the version before.

        Not to be cancelled: it ends by itself, within seconds.

        Raises:
            CatalogConflict, CatalogFull, CatalogFailed: nothing was written.
            CatalogUnknownOutcome: perhaps it was.
        """
        ...

    async def wait_for_change(self, known_version: int) -> None:
        """Returns when another version than this may be stored; now and then it may return without cause."""
        ...


def check_replaceable(stored: Document, document: Document, expected: Document | None) -> None:
    """Raises `CatalogConflict` where `document` may not replace what is stored: see `Catalog.replace`."""
    if document.version != stored.version + 1:
        raise CatalogConflict(f"version {stored.version} is stored, and {document.version} does not follow it")
    if expected is not None and stored != expected:
        raise CatalogConflict(f"version {stored.version} is stored with another content: somebody has restored a copy")
