"""What every catalog promises: the versions, the conflict, the limit, the signal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from foqs.catalog import changes
from foqs.catalog.document import EMPTY, Document, Permission
from foqs.catalog.local import FileCatalog
from foqs.catalog.memory import MemoryCatalog
from foqs.catalog.port import Catalog, CatalogConflict, CatalogFull
from foqs.catalog.shared import RegistryCatalog
from foqs.clock import SystemClock
from shardmgr.local import LocalEnsemble
from shardmgr.registry import Entry, Registry
from tests.support.aio import run

BYTES_MAX = 2_000
SESSION_MS = 6_000
FIRST = changes.create(EMPTY, "a", None, {"weight": 3})


class _Joined(RegistryCatalog):
    """One that begins its session when it is first used."""

    def __init__(self, registry: Registry) -> None:
        super().__init__(registry, BYTES_MAX)
        self._registry = registry
        self._joining: asyncio.Future[None] | None = None

    async def _read(self) -> tuple[Entry | None, Document]:
        if self._joining is None:
            self._joining = asyncio.ensure_future(self._registry.open())
        await self._joining
        return await super()._read()


@pytest.fixture(params=["memory", "file", "registry"])
def views(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Catalog]:
    """Gives views of one catalog, as several hosts have them."""
    if request.param == "memory":
        one = MemoryCatalog(bytes_max=BYTES_MAX)
        return lambda: one
    if request.param == "registry":
        ensemble = LocalEnsemble(None, SystemClock().monotonic_ms)
        return lambda: _Joined(ensemble.registry(SESSION_MS))
    return lambda: FileCatalog(tmp_path / "deep" / "catalog.json", BYTES_MAX, 0.005)


def test_a_new_catalog_is_empty(views: Callable[[], Catalog]) -> None:
    assert run(views().load()) == EMPTY


def test_what_was_stored_is_loaded_whole_by_everybody(views: Callable[[], Catalog]) -> None:
    async def main() -> None:
        document = changes.grant(FIRST, "a", "é\u2028", frozenset(Permission))
        document = changes.pause(Document(1, document.namespaces), "a", "mail ", paused=True)
        await views().replace(FIRST)
        await views().replace(document)
        assert await views().load() == document

    run(main())


@pytest.mark.parametrize("version", [0, 1, 3])
def test_a_document_that_does_not_follow_is_a_conflict_and_changes_nothing(
    views: Callable[[], Catalog], version: int
) -> None:
    async def main() -> None:
        await views().replace(FIRST)
        with pytest.raises(CatalogConflict):
            await views().replace(Document(version, {}))
        assert await views().load() == FIRST

    run(main())


def test_of_many_who_change_one_version_one_succeeds(views: Callable[[], Catalog]) -> None:
    async def main() -> None:
        await views().replace(FIRST)
        rivals = [changes.create(FIRST, f"n{number}", None, {}) for number in range(8)]
        results = await asyncio.gather(*(views().replace(rival) for rival in rivals), return_exceptions=True)
        won = [rival for rival, result in zip(rivals, results, strict=True) if result is None]
        assert len(won) == 1
        assert all(isinstance(result, CatalogConflict) for result in results if result is not None)
        assert await views().load() == won[0]

    run(main())


def test_a_document_over_the_limit_is_refused_and_changes_nothing(views: Callable[[], Catalog]) -> None:
    async def main() -> None:
        await views().replace(FIRST)
        large = FIRST
        for number in range(40):
            large = changes.pause(large, "a", f"{number}-{'x' * 50}", paused=True)
        with pytest.raises(CatalogFull, match="2000"):
            await views().replace(Document(2, large.namespaces))
        assert await views().load() == FIRST

    run(main())


def test_a_change_by_another_is_told(views: Callable[[], Catalog]) -> None:
    async def main() -> None:
        mine, other = views(), views()
        await other.replace(FIRST)
        document = await mine.load()
        waiting = asyncio.ensure_future(mine.changed(document.version))
        await asyncio.sleep(0)
        assert not waiting.done()
        await other.replace(changes.pause(FIRST, "a", "t", paused=True))
        await waiting
        assert (await mine.load()).version == 2
        await mine.changed(1)  # whoever asks with an old version need not wait
        waiting = asyncio.ensure_future(mine.changed(2))
        await other.replace(changes.pause(await other.load(), "a", "u", paused=True))
        await waiting

    run(main())
