"""Opens, checks and migrates a shard's SQLite file, and classifies its errors.

Always true: a connection from this module is in WAL mode with the requested
durability, belongs to the requested shard, has the newest schema and waits a
bounded time for locks. The directory entry of a new file is on disk.
Synchronous; knows nothing of event loops, owners or flushes.
"""

from __future__ import annotations

import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

from foqs.store.migrations import pending_migrations
from foqs.store.port import StoreError, StoreLost, StoreUnusable, WriteRefused
from foqs.store.sql_rows import owner_of
from foqs.store.sqlite import sqlite_sql as sql
from shardmgr.private_files import make_private_folder, private_opener

_LEVELS: Final = ("OFF", "NORMAL", "FULL", "EXTRA")
_FULL_LEVEL: Final = _LEVELS.index("FULL")
_PAGE_CACHE_KIB: Final = 16_384
_WAL_BYTES_KEPT: Final = 64 << 20
_WAL_ATTEMPTS: Final = 5

_DAMAGED_CODES: Final = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_LOCKED_CODES: Final = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_NO_ACCESS_CODES: Final = {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_AUTH}
_BROKEN_CODES: Final = {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_INTERRUPT}
_BAD_VALUE_CODES: Final = {sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_CONSTRAINT}
_DUPLICATE_CODES: Final = {
    sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY,
    sqlite3.SQLITE_CONSTRAINT_UNIQUE,
    sqlite3.SQLITE_CONSTRAINT_ROWID,
}
"""Extended codes: another row has this key."""


@dataclass(slots=True, frozen=True)
class SqliteFile:
    """The file of one shard, and how to open it.

    Args:
        path: the file; `open(create=True)` creates it and its folders.
        shard: the shard that it must hold.
        synchronous: SQLite's durability level; below FULL a power failure loses
            acknowledged writes.
        unsafe_durability: accept a level below FULL.
        busy_timeout_s: how long a statement waits for another process's lock.
    """

    path: Path
    shard: int
    synchronous: str
    unsafe_durability: bool
    busy_timeout_s: float

    def open(self, *, create: bool) -> sqlite3.Connection:
        """Return a connection to the file, ready for use.

        Raises:
            StoreUnusable: weak durability, another shard's file, no foqs file, a
                newer schema, damage, or, with `create`, no access.
            StoreLost: the file is locked or cannot be used now. Without `create`, a
                file that exists was usable before and may be usable again.
        """
        self._check_synchronous()
        new = not _may_exist(self.path)
        db: sqlite3.Connection | None = None
        try:
            if create and new:
                _make_folder(self.path.parent)
                # SQLite would create it with the mode of the umask. An empty file is an empty database.
                os.close(private_opener(str(self.path), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC))
            db = self._connect("rwc" if create else "rw")
            self._configure(db)
            self._migrate(db)
            if create:
                # Also if the file exists: the program that created it may have died before this.
                sync_folder(self.path.parent)
        except sqlite3.Error as error:
            _close(db)
            raise self._open_error(error, was_usable=not create and not new) from error
        except OSError as error:
            _close(db)
            raise StoreUnusable(
                f"the file {self.path} cannot be created: {error}; check that this user may write in its folder"
            ) from error
        except BaseException:
            _close(db)
            raise
        return db

    def open_for_reading(self) -> sqlite3.Connection:
        """Return a connection that only reads and waits for no lock.

        Raises:
            sqlite3.Error: it cannot be opened.
        """
        db = self._connect("rw")  # `ro` cannot read a file whose log has no index yet
        try:
            db.execute("PRAGMA query_only = ON")
            db.execute(f"PRAGMA cache_size = -{_PAGE_CACHE_KIB}")
        except BaseException:
            db.close()
            raise
        return db

    def store_error(self, error: Exception) -> StoreError:
        """Map an error of a statement to the state of its transaction.

        `WriteRefused` only if SQLite certainly rolls back; `StoreLost` if the file
        must be opened and read again before anything is known.
        """
        code = primary_code(error)
        text = f"{self.path}: {error}"
        if code in _LOCKED_CODES:
            return WriteRefused(f"{text}; another process holds the file's write lock: stop it", is_retryable=True)
        if code == sqlite3.SQLITE_FULL:
            return WriteRefused(f"{text}; make room on the disk that holds it", is_full=True)
        if code in _DAMAGED_CODES:
            return StoreLost(f"{text}; the file is damaged: stop, keep it, and restore a copy")
        if code in _BROKEN_CODES or code in _NO_ACCESS_CODES:
            return StoreLost(f"{text}; check the disk and the file's permissions")
        is_duplicate = getattr(error, "sqlite_errorcode", None) in _DUPLICATE_CODES
        is_bad_value = isinstance(error, (OverflowError, UnicodeEncodeError)) or (
            code in _BAD_VALUE_CODES and not is_duplicate
        )
        return WriteRefused(text, is_bad_value=is_bad_value)

    def _connect(self, mode: str) -> sqlite3.Connection:
        name = f"file:{quote(os.fsencode(self.path.absolute()))}?mode={mode}"
        return sqlite3.connect(name, timeout=self.busy_timeout_s, isolation_level=None, uri=True)

    def _check_synchronous(self) -> None:
        level = self.synchronous.upper()
        if level not in _LEVELS:
            raise StoreUnusable(f"synchronous={self.synchronous} is unknown; use one of {', '.join(_LEVELS)}")
        if _LEVELS.index(level) < _FULL_LEVEL and not self.unsafe_durability:
            raise StoreUnusable(
                f"synchronous={level} would lose acknowledged writes at a power failure: "
                "use FULL, or accept the loss with --unsafe-durability"
            )

    def _configure(self, db: sqlite3.Connection) -> None:
        mode = _switch_to_wal(db)
        if mode != "wal":
            raise StoreUnusable(
                f"{self.path}: the journal mode is {mode} and must be WAL; use a local disk, not a network folder"
            )
        level = self.synchronous.upper()
        db.execute(f"PRAGMA synchronous = {level}")
        (actual,) = db.execute("PRAGMA synchronous").fetchone()
        if actual != _LEVELS.index(level):
            raise StoreUnusable(
                f"{self.path}: SQLite keeps synchronous={_LEVELS[actual]} although {level} was set, so a power failure "
                "could lose acknowledged writes; use another build of SQLite"
            )
        db.execute(f"PRAGMA cache_size = -{_PAGE_CACHE_KIB}")
        db.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES_KEPT}")

    def _migrate(self, db: sqlite3.Connection) -> None:
        """Migrate the schema. The write lock makes a second opener wait, which then finds nothing to do.

        Raises:
            StoreUnusable: the file is another program's or another shard's, its schema is newer, or the owner row is missing.
        """
        db.execute(sql.BEGIN)
        (version,) = db.execute("PRAGMA user_version").fetchone()
        (application,) = db.execute("PRAGMA application_id").fetchone()
        (objects,) = db.execute("SELECT COUNT(*) FROM sqlite_schema").fetchone()
        if application != sql.APPLICATION_ID and (version or objects):
            raise StoreUnusable(f"{self.path} is the SQLite file of another program; choose another path")
        steps = pending_migrations(version, sql.MIGRATIONS, str(self.path))
        for step in steps:
            for statement in step.statements:
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {step.number}")
        if application != sql.APPLICATION_ID:
            db.execute(f"PRAGMA application_id = {sql.APPLICATION_ID}")
            db.execute(sql.ADD_OWNER, (self.shard,))
        owner_of(db.execute(sql.READ_OWNER).fetchone())
        (shard,) = db.execute(sql.READ_SHARD).fetchone()
        if shard != self.shard:
            raise StoreUnusable(f"{self.path} holds shard {shard}, not shard {self.shard}; check the configuration")
        db.execute(sql.COMMIT)
        if steps:
            # `sqlite_header` reads the file alone, without the log, and must see the new version.
            db.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def _open_error(self, error: sqlite3.Error, *, was_usable: bool) -> StoreError:
        code = primary_code(error)
        if code in _DAMAGED_CODES:
            return StoreUnusable(f"{self.path}: {error}; the file is damaged: keep it, and restore a copy")
        if code in _NO_ACCESS_CODES:
            text = f"{self.path}: {error}; let this user read and write the file and its folder"
            return StoreLost(text) if was_usable else StoreUnusable(text)
        if code in _LOCKED_CODES:
            return StoreLost(f"{self.path}: {error}; another process holds the file's write lock: stop it")
        return StoreLost(f"{self.path}: {error}")


def primary_code(error: Exception) -> int:
    """Return SQLite's primary result code of an error; 0 if it has none."""
    code = getattr(error, "sqlite_errorcode", None)
    return code & 0xFF if isinstance(code, int) else 0


def is_damage(error: Exception) -> bool:
    """Return whether an error says that the file is damaged."""
    return primary_code(error) in _DAMAGED_CODES


def _switch_to_wal(db: sqlite3.Connection) -> str:
    """Switch to WAL and return the resulting mode.

    Two openers of a new file can refuse each other without waiting, so the switch
    is tried a few times; one of the two always succeeds.
    """
    for is_last in (*[False] * (_WAL_ATTEMPTS - 1), True):
        try:
            (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
        except sqlite3.OperationalError as error:
            if is_last or primary_code(error) not in _LOCKED_CODES:
                raise
        else:
            return str(mode)
    raise AssertionError("unreachable")


def _may_exist(path: Path) -> bool:
    """Return whether the file exists; True also if this user may not look into its folder."""
    try:
        path.stat()
    except PermissionError:
        return True
    except OSError:
        return False
    return True


def _make_folder(folder: Path) -> None:
    """Create a folder durably, for this user only, and its parents."""
    if folder.is_dir():
        return
    missing = [parent for parent in folder.parents if not parent.is_dir()]
    make_private_folder(folder)
    for made in (*reversed(missing), folder):
        sync_folder(made.parent)


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _close(db: sqlite3.Connection | None) -> None:
    if db is not None:
        db.close()
