"""The catalog in a file: crashes, a damaged file, other processes."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
from pathlib import Path

import pytest

from foqs.catalog import changes, file_catalog
from foqs.catalog.document import EMPTY_DOCUMENT, Document, parse, render, render_stored
from foqs.catalog.file_catalog import FileCatalog
from foqs.catalog.port import CatalogFailed, CatalogUnknownOutcome
from tests.support.aio import run

FIRST = changes.create(EMPTY_DOCUMENT, "a", None, {})
SECOND = changes.create(FIRST, "b", None, {})


def stored(path: Path, document: Document = FIRST) -> FileCatalog:
    path.write_text(render(document))
    return FileCatalog(path, 100_000, 0.005)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"format": 1,\n"version": 1,\n"namespaces": {"a": ', "line 3"),
        (b'{"format": 1, "version": 1, "namespaces": {"a": {"paused": 1}}}', "namespaces.a.paused"),
        (b"", "line 1"),
        (b" " * 100_001, "catalog.bytes_max"),
        (b'{"format": 0}', "is damaged: format: 0"),
        (
            b'{"format": 3}',
            "was written by a newer version: format: 3 is not a format that this version reads; it reads 1 to 2",
        ),
    ],
)
def test_damaged_file_is_named_with_the_place_and_never_overwritten(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "catalog.json"
    catalog = stored(path)
    path.write_bytes(content)
    for call in (catalog.load, lambda: catalog.replace(FIRST), lambda: catalog.replace(SECOND)):
        with pytest.raises(CatalogFailed) as caught:
            run(call())
        assert str(caught.value).startswith(f"{path} ")
        assert words in str(caught.value)
    assert path.read_bytes() == content


def test_failed_write_leaves_only_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "catalog.json"
    catalog = stored(path)

    def full(number: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CatalogFailed, match="No space left"):
        run(catalog.replace(SECOND))
    assert run(catalog.load()) == FIRST
    assert {file.name for file in tmp_path.iterdir()} == {"catalog.json", "catalog.json.lock"}


def test_new_file_is_synced_before_the_rename_and_the_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "catalog.json"
    catalog = stored(path)
    synced: list[tuple[bool, str]] = []

    def note(number: int) -> None:
        target = Path(f"/proc/self/fd/{number}").readlink()
        synced.append((path.read_bytes() == render_stored(SECOND), target.name))

    monkeypatch.setattr(os, "fsync", note)
    run(catalog.replace(SECOND))
    assert synced == [(False, "catalog.json.new"), (True, tmp_path.name)]


def test_failed_sync_of_the_folder_is_an_unknown_outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "catalog.json"
    catalog = stored(path)

    def fails_late(number: int) -> None:
        if path.read_bytes() == render_stored(SECOND):
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fails_late)
    with pytest.raises(CatalogUnknownOutcome, match="Input/output"):
        run(catalog.replace(SECOND))
    assert run(catalog.load()) == SECOND


def test_files_left_by_a_crash_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "catalog.json"
    catalog = stored(path)
    path.with_name("catalog.json.new").write_text("half of a docu" * 10_000)
    run(catalog.replace(SECOND))
    assert run(catalog.load()) == SECOND


def test_lock_that_is_never_released_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_catalog, "LOCK_WAIT_S", 0.05)
    path = tmp_path / "catalog.json"
    catalog = stored(path)
    with path.with_name("catalog.json.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(CatalogFailed, match=r"catalog\.json\.lock"):
            run(catalog.replace(SECOND))
    run(catalog.replace(SECOND))


def test_file_that_is_deleted_restored_or_replaced_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "catalog.json"

    async def main() -> None:
        catalog = stored(path, SECOND)
        assert await catalog.load() == SECOND
        path.unlink()
        await catalog.wait_for_change(2)
        assert await catalog.load() == EMPTY_DOCUMENT
        waiting = asyncio.ensure_future(catalog.wait_for_change(0))
        path.write_text(render(FIRST))
        await waiting
        assert await catalog.load() == FIRST

    run(main())


def test_content_that_was_read_or_written_here_is_not_parsed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "catalog.json"
    catalog, parsed = stored(path), 0

    def counted(data: bytes) -> Document:
        nonlocal parsed
        parsed += 1
        return parse(data)

    monkeypatch.setattr(file_catalog, "parse", counted)

    async def main() -> None:
        document = await catalog.load()
        for number in range(5):
            await catalog.replace(document := changes.pause(document, "a", f"{number}", paused=True))
            assert await catalog.load() is document
        assert parsed == 1
        path.write_text(render(SECOND))
        assert await catalog.load() == SECOND
        assert parsed == 2

    run(main())
