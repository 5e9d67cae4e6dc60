"""Files of the SQLite store, opened for a moment or edited as another program would."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from foqs.store.sqlite.sqlite_store import SqliteStore
from tests.support.aio import run


def open_and_close(store: SqliteStore) -> None:
    """Open a store in an event loop of its own, and close it."""

    async def story() -> None:
        try:
            await store.open()
        finally:
            await store.close()

    run(story())


def edit(path: Path, *statements: str) -> None:
    """Run statements on a file, each committed by itself."""
    db = sqlite3.connect(path, isolation_level=None)
    try:
        for statement in statements:
            db.execute(statement)
    finally:
        db.close()
