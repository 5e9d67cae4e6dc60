"""The catalog in the registry: an unreachable registry, a lost entry, an entry that is no catalog."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from foqs.catalog import changes
from foqs.catalog.document import EMPTY_DOCUMENT, Document, render
from foqs.catalog.port import CatalogConflict, CatalogFailed, CatalogFull, CatalogUnknownOutcome, CatalogUnreachable
from foqs.catalog.registry_catalog import DOCUMENT_NAME, RegistryCatalog
from foqs.testing.virtual_loop import VirtualClock
from shardmgr.registry.port import DOCUMENT_BYTES_MAX, RegistryConflict, RegistryOutcomeUnknown, VersionedDocument
from tests.support.builders import engine_settings
from tests.support.engines import Caller, World, run_in_world
from tests.support.local_ensemble import LocalEnsemble, LocalRegistry

FIRST = changes.create(EMPTY_DOCUMENT, "default", None, {})


class Catalogs:
    """One registry, and catalogs that use it."""

    def __init__(self, clock: VirtualClock) -> None:
        self.ensemble = LocalEnsemble(None, clock.monotonic_ms)

    async def view(self) -> tuple[LocalRegistry, RegistryCatalog]:
        registry = self.ensemble.registry(6_000)
        await registry.open()
        return registry, RegistryCatalog(registry, 16 << 20)


def run_story(story: Callable[[World, Catalogs], Coroutine[Any, Any, None]]) -> None:
    """Run a story in virtual time."""
    run_in_world(lambda world: story(world, Catalogs(world.clock)))


def test_calls_fail_while_the_registry_is_unreachable_and_a_change_is_seen_afterwards() -> None:
    async def story(world: World, catalogs: Catalogs) -> None:
        mine, catalog = await catalogs.view()
        _, other = await catalogs.view()
        await catalog.replace(FIRST)
        document = await catalog.load()
        catalogs.ensemble.disconnect(mine)
        for call in (catalog.load, lambda: catalog.replace(changes.pause(FIRST, "default", "t", paused=True))):
            with pytest.raises(CatalogUnreachable, match="suspended"):
                await call()
        waiting = asyncio.ensure_future(catalog.wait_for_change(document.version))
        await other.replace(changes.pause(FIRST, "default", "t", paused=True))
        await world.pass_s(30)
        assert not waiting.done()
        catalogs.ensemble.reconnect(mine)
        await world.pass_s(0.01)
        assert waiting.done()
        assert (await catalog.load()).version == 2

    run_story(story)


def test_other_changes_of_the_registry_do_not_end_the_wait() -> None:
    async def story(world: World, catalogs: Catalogs) -> None:
        registry, catalog = await catalogs.view()
        await catalog.replace(FIRST)
        await catalog.load()
        waiting = asyncio.ensure_future(catalog.wait_for_change(1))
        for number in range(5):
            await registry.replace(f"plan{number}", b"", None)
            await world.pass_s(1)
        assert not waiting.done()
        waiting.cancel()

    run_story(story)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'{"format": 0}', "'catalog' of the registry is damaged: format: 0.* delete it"),
        (b'{"format": 3}', "'catalog' of the registry was written by a newer version.* keep the document"),
    ],
)
def test_document_of_a_newer_version_is_not_called_damaged(data: bytes, words: str) -> None:
    """Its export has the newer format, too: an operator who deletes it has none."""

    async def story(world: World, catalogs: Catalogs) -> None:
        registry, catalog = await catalogs.view()
        await registry.replace(DOCUMENT_NAME, data, None)
        with pytest.raises(CatalogFailed, match=words):
            await catalog.load()

    run_story(story)


def test_unchanged_text_is_not_parsed_again() -> None:
    async def story(world: World, catalogs: Catalogs) -> None:
        _, catalog = await catalogs.view()
        await catalog.replace(FIRST)
        first = await catalog.load()
        assert await catalog.load() is first
        await catalog.replace(changes.pause(FIRST, "default", "t", paused=True))
        assert (await catalog.load()).version == 2

    run_story(story)


def test_own_change_is_not_parsed() -> None:
    async def story(world: World, catalogs: Catalogs) -> None:
        _, catalog = await catalogs.view()
        await catalog.replace(FIRST)
        assert await catalog.load() is FIRST

    run_story(story)


def test_changes_that_take_long_to_parse_are_read_a_tenth_of_the_time() -> None:
    """Another host may change a large document without a pause."""

    async def story(world: World, catalogs: Catalogs) -> None:
        _, catalog = await catalogs.view()
        _, other = await catalogs.view()
        await other.replace(FIRST)
        document = await catalog.load()
        catalog._parse_s = 0.02
        waiting = asyncio.ensure_future(catalog.wait_for_change(document.version))
        await world.pass_s(0.01)
        await other.replace(changes.pause(FIRST, "default", "t", paused=True))
        await world.pass_s(0.15)
        assert not waiting.done()
        await world.pass_s(0.1)
        assert waiting.done()

    run_story(story)


def test_change_between_load_and_wait_is_seen() -> None:
    async def story(world: World, catalogs: Catalogs) -> None:
        _, catalog = await catalogs.view()
        _, other = await catalogs.view()
        await catalog.replace(FIRST)
        await catalog.load()
        await other.replace(changes.pause(FIRST, "default", "t", paused=True))
        await world.pass_s(1)
        await asyncio.wait_for(catalog.wait_for_change(1), 1)

    run_story(story)


def test_entry_that_is_no_catalog_is_reported_and_never_overwritten() -> None:
    async def story(world: World, catalogs: Catalogs) -> None:
        registry, catalog = await catalogs.view()
        await registry.replace(DOCUMENT_NAME, b"{", None)
        for call in (catalog.load, lambda: catalog.replace(FIRST)):
            with pytest.raises(CatalogFailed, match="import an export"):
                await call()
        assert await registry.read(DOCUMENT_NAME) == VersionedDocument(b"{", 0)

    run_story(story)


def test_document_over_the_limit_of_the_registry_is_refused() -> None:
    async def story(world: World, catalogs: Catalogs) -> None:
        _, catalog = await catalogs.view()
        topics = frozenset(f"{number}{'x' * 240}" for number in range(5_000))
        namespaces = {"default": changes.find_namespace(FIRST, "default")}
        large = Document(1, {name: type(own)(paused=topics) for name, own in namespaces.items()})
        assert len(render(large)) > DOCUMENT_BYTES_MAX
        with pytest.raises(CatalogFull, match="delete what is not needed"):
            await catalog.replace(large)

    run_story(story)


@pytest.mark.parametrize(
    ("error", "kind"), [(RegistryConflict("c"), CatalogConflict), (RegistryOutcomeUnknown("u"), CatalogUnknownOutcome)]
)
def test_errors_of_the_registry_become_errors_of_the_catalog(error: Exception, kind: type[Exception]) -> None:
    async def story(world: World, catalogs: Catalogs) -> None:
        registry, catalog = await catalogs.view()

        async def replace(name: str, data: bytes, version: int | None) -> int:
            raise error

        registry.replace = replace  # type: ignore[method-assign]
        with pytest.raises(kind):
            await catalog.replace(FIRST)

    run_story(story)


def test_change_of_one_host_applies_at_another_within_a_second() -> None:
    async def story(world: World, catalogs: Catalogs) -> None:
        engines = []
        for number in (1, 2):
            _, world.catalog = await catalogs.view()
            engines.append(await world.engine(engine_settings(number), sharing=(1, 2)))
        one, two = engines
        await one.admin.pause("default", "t", world.deadline_in(5), paused=True)
        await world.until(lambda: bool(two.namespaces.paused_topics), within_s=1)
        await world.until(lambda: all(engine.shards[n].key_slots for n, engine in enumerate(engines, 1)), within_s=1)
        await Caller(world, two).put()

    run_story(story)
