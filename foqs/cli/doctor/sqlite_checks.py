"""Doctor's checks of shards in SQLite files: their settings, versions and modes.

Always true: no shard's database is opened, so the files stay as they are, also for
a running host or another user. Knows nothing of how findings are shown.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from foqs.cli.doctor.finding import StoreLocation, durability_finding, schema_finding
from foqs.options.config import Config
from foqs.store.port import StoreError
from foqs.store.sqlite import sqlite_sql as sql
from foqs.store.sqlite.sqlite_header import read_header
from foqs.store.sqlite.sqlite_store import SqliteStore
from foqs.telemetry.findings import Finding
from foqs_contract.plurals import counted

_SHARD_FILE_PATTERN: Final = re.compile(r"shard-(\d+)\.db")
_SHOWN_MAX: Final = 3


async def check_sqlite(folder: Path, location: StoreLocation) -> list[Finding]:
    """Check a folder and the files of its shards."""
    return [await _check_store(folder, location), *_check_schema(folder, location)]


async def _check_store(folder: Path, place: StoreLocation) -> Finding:
    """Check the settings with a temporary store beside the real ones."""
    path, existing = _absolute_and_nearest(folder)
    try:
        with tempfile.TemporaryDirectory(prefix=".doctor-", dir=existing) as probe:
            opened = SqliteStore(Path(probe) / "probe.sqlite", 0)
            try:
                await opened.open()
            finally:
                await opened.close()
    except (StoreError, OSError) as error:
        return Finding(
            "Store", "bad", f"SQLite cannot keep items in {path}: {error}", f"name another folder in {place.key}.url"
        )
    detail = f"SQLite in {path}; every commit is on disk before it is acknowledged"
    return durability_finding(detail, place.accepts_unsafe_durability)


def _check_schema(folder: Path, place: StoreLocation) -> Iterator[Finding]:
    versions: dict[int, int] = {}
    try:
        found = _shard_files(folder)
    except PermissionError:
        return  # check_files reports it
    for shard, path in found.items():
        try:
            header = read_header(path)
        except OSError as error:
            remedy = f"let this user read and write it: chown {_user_id()} {shlex.quote(str(path))}"
            yield Finding("Schema", "bad", f"{path} cannot be read: {error.strerror}", remedy)
            return
        if header is None or (header.application_id not in (0, sql.APPLICATION_ID)):
            remedy = f"move it away, or name another folder in {place.key}.url"
            yield Finding("Schema", "bad", f"{path} is not a file of FOQS, or is damaged", remedy)
            return
        versions[shard] = header.schema_version
    yield schema_finding(versions, sql.MIGRATIONS[-1].number, place, may_upgrade=True)


def check_files(config: Config) -> Finding:
    """Check that this user may use the files of a host, and no other user may change or read them."""
    try:
        return _check_readable_files(config)
    except PermissionError as error:
        return _inaccessible_finding(Path(error.filename))


def _check_readable_files(config: Config) -> Finding:
    folder = config.data_dir
    places = [folder, *sorted(folder.glob("shard-*.db*"))]
    for file in (config.coordinator_file, config.catalog_file):
        if file is not None:
            places += [place for place in (file.parent, file) if place not in places]
    found = [place for place in places if place.exists()]
    locked = [place for place in found if not os.access(place, os.R_OK | os.W_OK, effective_ids=True)]
    if locked:
        return _inaccessible_finding(*locked)
    loose = [place for place in found if _others_may_write(place)]
    if loose:
        remedy = f"chmod o-w {' '.join(shlex.quote(str(place)) for place in loose[:_SHOWN_MAX])}"
        return Finding("Files", "bad", f"every user of this machine may change {_list_paths(loose)}", remedy)
    exposed = [place for place in found if place.is_file() and _others_may_read(place)]
    if exposed:
        detail = f"every user of this machine may read {_list_paths(exposed)}"
        return Finding("Files", "warning", detail, _closing_commands(exposed, folder))
    return Finding(
        "Files",
        "ok",
        f"{counted(len(found), 'file or folder is', 'files and folders are')} accessible to this user"
        if found
        else "none yet",
    )


def _closing_commands(exposed: Sequence[Path], folder: Path) -> str:
    """Return the commands after which nobody else reads the files. Other folders than that of the data are not FOQS' own."""
    inside = [f"chmod 700 {shlex.quote(str(folder))}"] if any(place.parent == folder for place in exposed) else []
    others = [shlex.quote(str(place)) for place in exposed if place.parent != folder]
    return "; ".join([*inside, *([f"chmod 600 {' '.join(others)}"] if others else [])])


def _inaccessible_finding(*places: Path) -> Finding:
    remedy = f"give it to the user of the host: chown -R {_user_id()} {shlex.quote(str(places[0]))}"
    return Finding("Files", "bad", f"this user may not read and write {_list_paths(places)}", remedy)


def _others_may_write(place: Path) -> bool:
    mode = place.stat().st_mode
    return bool(mode & stat.S_IWOTH) and not mode & stat.S_ISVTX


def _others_may_read(file: Path) -> bool:
    return bool(file.stat().st_mode & stat.S_IROTH and file.parent.stat().st_mode & stat.S_IXOTH)


def nearest_folder(path: Path) -> Path:
    """Return the path or its nearest existing parent that this user can see."""
    return next(place for place in (path, *path.parents) if os.path.exists(place))  # noqa: PTH110 - it raises nothing


def _absolute_and_nearest(folder: Path) -> tuple[Path, Path]:
    """Return the absolute folder, and its nearest existing parent or itself."""
    path = folder.absolute()
    return path, nearest_folder(path)


def _shard_files(folder: Path) -> dict[int, Path]:
    matches = [(path, _SHARD_FILE_PATTERN.fullmatch(path.name)) for path in folder.glob("shard-*.db")]
    return {int(match[1]): path for path, match in sorted(matches) if match}


def _list_paths(places: Sequence[Path]) -> str:
    more = f" and {len(places) - _SHOWN_MAX} more" if len(places) > _SHOWN_MAX else ""
    return ", ".join(map(str, places[:_SHOWN_MAX])) + more


def _user_id() -> str:
    return str(os.geteuid())
