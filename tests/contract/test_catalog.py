"""The contract of all catalogs: versions, conflicts, the size limit, the signal of a change."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from foqs.catalog import changes
from foqs.catalog.document import EMPTY_DOCUMENT, Document, Permission
from foqs.catalog.file_catalog import FileCatalog
from foqs.catalog.memory_catalog import MemoryCatalog
from foqs.catalog.port import Catalog, CatalogConflict, CatalogFull
from foqs.catalog.registry_catalog import RegistryCatalog
from shardmgr.registry.port import Registry, VersionedDocument
from tests.support.aio import run
from tests.support.registries import LocalBench, ZooKeeperBench
from tests.support.zookeeper import ZooKeeper

BYTES_MAX = 2_000
_fresh = itertools.count(1)
FIRST = changes.create(EMPTY_DOCUMENT, "a", None, {"weight": 3})


class Views:
    """Opens one catalog several times, as several hosts do."""

    def __init__(self, view: Callable[[], Catalog], run: Callable[[Coroutine[Any, Any, None]], None] = run) -> None:
        self.view = view
        self.run = run


class _Joined(RegistryCatalog):
    """Joins the registry at its first use."""

    def __init__(self, registry: Registry) -> None:
        super().__init__(registry, BYTES_MAX)
        self._registry = registry
        self._joining: asyncio.Future[None] | None = None

    async def _read(self) -> tuple[VersionedDocument | None, Document]:
        if self._joining is None:
            self._joining = asyncio.ensure_future(self._registry.open())
        await self._joining
        return await super()._read()


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[ZooKeeper]:
    with ZooKeeper() as server:
        yield server


@pytest.fixture(params=["memory", "file", "registry", pytest.param("zookeeper", marks=pytest.mark.zookeeper)])
def views(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Views]:
    if request.param == "memory":
        one = MemoryCatalog(bytes_max=BYTES_MAX)
        yield Views(lambda: one)
    elif request.param == "file":
        yield Views(lambda: FileCatalog(tmp_path / "deep" / "catalog.json", BYTES_MAX, 0.005))
    elif request.param == "registry":
        local = LocalBench()
        yield Views(lambda: _Joined(local.registry()), local.run)
    else:
        bench = ZooKeeperBench(request.getfixturevalue("zookeeper"), f"/foqs/catalog-{next(_fresh)}")
        yield Views(lambda: _Joined(bench.registry()), bench.run)
        bench.remove()


def test_new_catalog_is_empty(views: Views) -> None:
    async def main() -> None:
        assert await views.view().load() == EMPTY_DOCUMENT

    views.run(main())


def test_stored_document_is_loaded_unchanged_by_all_hosts(views: Views) -> None:
    async def main() -> None:
        document = changes.grant(FIRST, "a", "é\u2028", frozenset(Permission))
        document = changes.pause(Document(1, document.namespaces), "a", "mail ", paused=True)
        await views.view().replace(FIRST)
        await views.view().replace(document)
        assert await views.view().load() == document

    views.run(main())


@pytest.mark.parametrize("version", [0, 1, 3])
def test_document_with_a_wrong_version_is_a_conflict_and_is_not_stored(views: Views, version: int) -> None:
    async def main() -> None:
        await views.view().replace(FIRST)
        with pytest.raises(CatalogConflict):
            await views.view().replace(Document(version, {}))
        assert await views.view().load() == FIRST

    views.run(main())


def test_restored_copy_with_the_same_version_is_a_conflict_and_is_not_replaced(views: Views) -> None:
    async def main() -> None:
        restored = changes.create(EMPTY_DOCUMENT, "restored", None, {})  # same version as FIRST, other content
        await views.view().replace(restored)
        change = changes.pause(FIRST, "a", "t", paused=True)
        with pytest.raises(CatalogConflict, match="another content"):
            await views.view().replace(change, FIRST)
        assert await views.view().load() == restored
        await views.view().replace(changes.create(restored, "b", None, {}), restored)
        assert (await views.view().load()).version == 2

    views.run(main())


def test_one_of_many_concurrent_changes_succeeds(views: Views) -> None:
    async def main() -> None:
        await views.view().replace(FIRST)
        rivals = [changes.create(FIRST, f"n{number}", None, {}) for number in range(8)]
        results = await asyncio.gather(*(views.view().replace(rival) for rival in rivals), return_exceptions=True)
        won = [rival for rival, result in zip(rivals, results, strict=True) if result is None]
        assert len(won) == 1
        assert all(isinstance(result, CatalogConflict) for result in results if result is not None)
        assert await views.view().load() == won[0]

    views.run(main())


def test_document_over_the_limit_is_refused_and_not_stored(views: Views) -> None:
    async def main() -> None:
        await views.view().replace(FIRST)
        large = FIRST
        for number in range(40):
            large = changes.pause(large, "a", f"{number}-{'x' * 50}", paused=True)
        with pytest.raises(CatalogFull, match="2000"):
            await views.view().replace(Document(2, large.namespaces))
        assert await views.view().load() == FIRST

    views.run(main())


def test_change_by_another_host_ends_the_wait(views: Views) -> None:
    async def main() -> None:
        mine, other = views.view(), views.view()
        await other.replace(FIRST)
        document = await mine.load()
        waiting = asyncio.ensure_future(mine.wait_for_change(document.version))
        await asyncio.sleep(0)
        assert not waiting.done()
        await other.replace(changes.pause(FIRST, "a", "t", paused=True))
        await waiting
        assert (await mine.load()).version == 2
        await mine.wait_for_change(1)  # an old version returns at once
        waiting = asyncio.ensure_future(mine.wait_for_change(2))
        await other.replace(changes.pause(await other.load(), "a", "u", paused=True))
        await waiting

    views.run(main())
