"""The catalog in the registry: what becomes of it when the registry does not answer, loses it, or holds something else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from foqs.catalog import changes
from foqs.catalog.document import EMPTY_DOCUMENT, Document, render
from foqs.catalog.port import CatalogConflict, CatalogFailed, CatalogFull, CatalogUnknownOutcome, CatalogUnreachable
from foqs.catalog.registry_catalog import DOCUMENT_NAME, RegistryCatalog
from shardmgr.local_coordinator import LocalEnsemble, LocalRegistry
from shardmgr.registry.checks import DOCUMENT_BYTES_MAX
from shardmgr.registry.port import RegistryConflict, RegistryOutcomeUnknown, VersionedDocument
from tests.support.builders import engine_settings
from tests.support.engines import Caller, World, run_in_world
from tests.support.virtual_time import VirtualClock

FIRST = changes.create(EMPTY_DOCUMENT, "default", None, {})


class Place:
    """One ensemble, and catalogs on it."""

    def __init__(self, clock: VirtualClock) -> None:
        self.ensemble = LocalEnsemble(None, clock.monotonic_ms)

    async def view(self) -> tuple[LocalRegistry, RegistryCatalog]:
        registry = self.ensemble.registry(6_000)
        await registry.open()
        return registry, RegistryCatalog(registry, 16 << 20)


def told(story: Callable[[World, Place], Coroutine[Any, Any, None]]) -> None:
    """Plays a story under virtual time."""
    run_in_world(lambda world: story(world, Place(world.clock)))


def test_a_registry_that_is_not_reached_fails_and_a_change_is_seen_as_soon_as_it_is() -> None:
    async def story(world: World, place: Place) -> None:
        mine, catalog = await place.view()
        _, other = await place.view()
        await catalog.replace(FIRST)
        document = await catalog.load()
        place.ensemble.disconnect(mine)
        for call in (catalog.load, lambda: catalog.replace(changes.pause(FIRST, "default", "t", paused=True))):
            with pytest.raises(CatalogUnreachable, match="suspended"):
                await call()
        waiting = asyncio.ensure_future(catalog.wait_for_change(document.version))
        await other.replace(changes.pause(FIRST, "default", "t", paused=True))
        await world.pass_s(30)
        assert not waiting.done()
        place.ensemble.reconnect(mine)
        await world.pass_s(0.01)
        assert waiting.done()
        assert (await catalog.load()).version == 2

    told(story)


def test_other_changes_of_the_registry_are_no_change_of_the_catalog() -> None:
    async def story(world: World, place: Place) -> None:
        registry, catalog = await place.view()
        await catalog.replace(FIRST)
        await catalog.load()
        waiting = asyncio.ensure_future(catalog.wait_for_change(1))
        for number in range(5):
            await registry.replace(f"plan{number}", b"", None)
            await world.pass_s(1)
        assert not waiting.done()
        waiting.cancel()

    told(story)


def test_a_text_that_is_loaded_again_is_not_parsed_again_until_it_changes() -> None:
    async def story(world: World, place: Place) -> None:
        _, catalog = await place.view()
        await catalog.replace(FIRST)
        first = await catalog.load()
        assert await catalog.load() is first
        await catalog.replace(changes.pause(FIRST, "default", "t", paused=True))
        assert (await catalog.load()).version == 2

    told(story)


def test_a_change_between_a_load_and_the_wait_is_seen() -> None:
    async def story(world: World, place: Place) -> None:
        _, catalog = await place.view()
        _, other = await place.view()
        await catalog.replace(FIRST)
        await catalog.load()
        await other.replace(changes.pause(FIRST, "default", "t", paused=True))
        await world.pass_s(1)
        await asyncio.wait_for(catalog.wait_for_change(1), 1)

    told(story)


def test_what_is_no_catalog_is_said_and_never_overwritten() -> None:
    async def story(world: World, place: Place) -> None:
        registry, catalog = await place.view()
        await registry.replace(DOCUMENT_NAME, b"{", None)
        for call in (catalog.load, lambda: catalog.replace(FIRST)):
            with pytest.raises(CatalogFailed, match="import an export"):
                await call()
        assert await registry.read(DOCUMENT_NAME) == VersionedDocument(b"{", 0)

    told(story)


def test_a_document_that_the_registry_cannot_take_is_refused_whatever_is_configured() -> None:
    async def story(world: World, place: Place) -> None:
        _, catalog = await place.view()
        topics = frozenset(f"{number}{'x' * 240}" for number in range(5_000))
        namespaces = {"default": changes.find_namespace(FIRST, "default")}
        large = Document(1, {name: type(own)(paused=topics) for name, own in namespaces.items()})
        assert len(render(large)) > DOCUMENT_BYTES_MAX
        with pytest.raises(CatalogFull, match="delete what is not needed"):
            await catalog.replace(large)

    told(story)


@pytest.mark.parametrize(
    ("error", "kind"), [(RegistryConflict("c"), CatalogConflict), (RegistryOutcomeUnknown("u"), CatalogUnknownOutcome)]
)
def test_how_a_replacement_ended_is_told(error: Exception, kind: type[Exception]) -> None:
    async def story(world: World, place: Place) -> None:
        registry, catalog = await place.view()

        async def replace(name: str, data: bytes, version: int | None) -> int:
            raise error

        registry.replace = replace  # type: ignore[method-assign]
        with pytest.raises(kind):
            await catalog.replace(FIRST)

    told(story)


def test_a_change_through_one_host_holds_on_another_within_a_second() -> None:
    async def story(world: World, place: Place) -> None:
        engines = []
        for number in (1, 2):
            _, world.catalog = await place.view()
            engines.append(await world.engine(engine_settings(number), sharing=(1, 2)))
        one, two = engines
        await one.admin.pause("default", "t", world.deadline_in(5), paused=True)
        await world.until(lambda: bool(two.namespaces.paused_topics), within_s=1)
        await world.until(lambda: all(engine.shards[n].key_slots for n, engine in enumerate(engines, 1)), within_s=1)
        await Caller(world, two).put()

    told(story)
