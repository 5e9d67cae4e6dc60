"""Migrations: a numbered list of steps from an empty database to the current tables.

Always true: numbers are 1, 2, 3, ... without gaps; a version is the number of
the last step applied; a released step is never edited. Knows nothing of
dialects or of how a version is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from foqs.store.port import StoreUnusable


@dataclass(slots=True, frozen=True)
class Migration:
    """One step.

    `statements` run in order. If the database cannot run them as one transaction,
    each must be harmless when it runs again after a crash.
    """

    number: int
    purpose: str
    statements: tuple[str, ...]


def pending_migrations(version: int, migrations: Sequence[Migration], location: str) -> list[Migration]:
    """Return the steps that a database of this version still needs.

    Raises:
        StoreUnusable: the version is newer than this program knows.
    """
    newest = migrations[-1].number
    if version > newest:
        raise StoreUnusable(
            f"{location} has schema version {version}, and this program knows versions up to {newest}: "
            "run the newer foqs that wrote it, or restore a copy made before its upgrade"
        )
    return [step for step in migrations if step.number > version]
