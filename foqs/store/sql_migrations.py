"""Migrations: a numbered list of steps from an empty database to today's tables.

Always true: numbers are 1, 2, 3, ... without gaps; a version is the number of
the last step applied; a step that was released is never edited. Knows nothing
of dialects or of how a version is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from foqs.store.port import StoreUnusable


@dataclass(slots=True, frozen=True)
class Migration:
    """One step.

    `statements` run in order. Where the database cannot run them as one
    transaction, each must be harmless when it runs again after a crash.
    """

    number: int
    purpose: str
    statements: tuple[str, ...]


def pending(found: int, known: Sequence[Migration], where: str) -> list[Migration]:
    """The steps still to be taken from version `found`.

    Raises:
        StoreUnusable: `found` is newer than the last step this program knows.
    """
    newest = known[-1].number
    if found > newest:
        raise StoreUnusable(
            f"{where} has schema version {found}, and this program knows versions up to {newest}: "
            "run the newer foqs that wrote it, or restore a copy made before its upgrade"
        )
    return [step for step in known if step.number > found]
