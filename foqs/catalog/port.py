"""The catalog's port: stores one document with what administrators configure.

Always true: a document is replaced as a whole, only by the next version, and
only if its author read the stored one; so no change overwrites another. The
stored document is the truth even if its version is lower than one read before:
then a copy was restored. Implementations are `file_catalog` (a file, for one
host), `registry_catalog` (for several hosts) and `memory_catalog` (for hosts that store nothing).
tests/contract/test_catalog.py runs against all of them.
"""

from __future__ import annotations

from typing import Protocol

from foqs.catalog.document import Document
from foqs_contract.printable_text import printable


class CatalogError(Exception):
    """An error of a catalog. Its text is for a person: what is wrong, where, and what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))  # it may name a file, and the name of a file may be any bytes


class CatalogFailed(CatalogError):
    """The catalog cannot be read or written now, or is damaged. Nothing was or will be written."""


class CatalogUnreachable(CatalogFailed):
    """The registry that stores the catalog did not reply. It may do so later."""


class CatalogConflict(CatalogError):
    """The stored document is not the one that was changed. Nothing was written: load it and change it again."""


class CatalogFull(CatalogError):
    """The document is larger than the limit. Nothing was written."""


class CatalogUnknownOutcome(CatalogError):
    """The document may have been written, or may still be. `load` returns what is stored."""


class Catalog(Protocol):
    """Stores one document. Calls may run concurrently.

    Attributes:
        bytes_max: the limit of the document, as `render_stored` returns it.
    """

    bytes_max: int

    async def load(self) -> Document:
        """Return the stored document; `EMPTY_DOCUMENT`, with version 0, if none was ever stored. Raises `CatalogFailed`."""
        ...

    async def replace(self, document: Document, expected: Document | None = None) -> None:
        """Store a document durably in place of the previous version.

        Must not be cancelled; it ends within seconds.

        Args:
            expected: the document that must be stored now. It matters if a copy with the same version was restored.
                None accepts any document with the previous version.

        Raises:
            CatalogConflict, CatalogFull, CatalogFailed: nothing was written.
            CatalogUnknownOutcome: the document may have been written.
        """
        ...

    async def wait_for_change(self, known_version: int) -> None:
        """Wait until another version may be stored. Sometimes returns without a change."""
        ...


def check_replaceable(stored: Document, document: Document, expected: Document | None) -> None:
    """Raise `CatalogConflict` if `document` may not replace the stored one; see `Catalog.replace`."""
    if document.version != stored.version + 1:
        raise CatalogConflict(
            f"version {stored.version} of the catalog is stored, and version {document.version} does not follow it"
        )
    if expected is not None and stored != expected:
        raise CatalogConflict(
            f"version {stored.version} of the catalog is stored with another content: a copy was restored"
        )
