"""A catalog that is slow, unreachable, damaged or restored from a copy, on an engine in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from foqs.catalog import changes, namespaces
from foqs.catalog.document import Document
from foqs.catalog.memory_catalog import MemoryCatalog
from foqs.catalog.port import CatalogError, CatalogFailed, CatalogUnknownOutcome, CatalogUnreachable
from foqs.core.items.life import RetryPolicy
from foqs.queue.engine import Engine
from foqs_contract.errors import (
    DeadlineExceeded,
    NamespaceNotFound,
    Unavailable,
    UnknownOutcome,
)
from tests.support.builders import engine_settings
from tests.support.catalogs import install_gated_catalog, pause
from tests.support.engines import Caller, World, run_in_world
from tests.support.method_gate import start_task


def test_change_continues_without_its_caller_and_the_next_change_waits() -> None:
    async def story(world: World) -> None:
        catalog = await install_gated_catalog(world)
        engine = await world.engine()
        catalog.gate.clear()
        leaving = start_task(pause(engine, "t"))
        await world.until(lambda: catalog.replacing == 1)
        leaving.cancel()
        with pytest.raises(DeadlineExceeded):
            await engine.admin.pause("default", "u", world.deadline_in(0.1), paused=True)
        assert catalog.replacing == 1
        catalog.gate.set()
        await pause(engine, "v")
        assert {topic for _, topic in engine.namespaces.paused_topics} == {"t", "v"}

    run_in_world(story)


def test_change_not_stored_by_the_deadline_is_unknown_and_applies_once_stored() -> None:
    async def story(world: World) -> None:
        catalog = await install_gated_catalog(world)
        engine = await world.engine()
        catalog.gate.clear()
        with pytest.raises(UnknownOutcome):
            await engine.admin.pause("default", "t", world.deadline_in(0.1), paused=True)
        assert not engine.namespaces.paused_topics
        catalog.gate.set()
        await world.until(lambda: bool(engine.namespaces.paused_topics), within_s=1)

    run_in_world(story)


def test_unknown_outcome_of_a_replacement_is_reported_and_the_stored_document_applies() -> None:
    async def story(world: World) -> None:
        catalog = await install_gated_catalog(world)
        engine = await world.engine()
        catalog.failure = CatalogUnknownOutcome("the folder cannot be synced")
        with pytest.raises(UnknownOutcome, match="synced"):
            await pause(engine, "t")
        await world.until(lambda: bool(engine.namespaces.paused_topics), within_s=1)

    run_in_world(story)


def test_unknown_outcome_stays_unknown_if_the_catalog_cannot_be_read_afterwards() -> None:
    async def story(world: World) -> None:
        catalog = await install_gated_catalog(world)
        engine = await world.engine()
        original_load, replace = catalog.load, catalog.replace

        async def stored(document: Document, expected: Document | None = None) -> None:
            await replace(document, expected)
            catalog.load = silent  # type: ignore[method-assign]
            raise CatalogUnknownOutcome("no answer")

        async def silent() -> Document:
            raise CatalogFailed("nobody answers")

        catalog.replace = stored  # type: ignore[method-assign]
        with pytest.raises(UnknownOutcome, match="no answer"):
            await pause(engine, "t")
        catalog.load = original_load  # type: ignore[method-assign]
        await world.until(lambda: bool(engine.namespaces.paused_topics), within_s=3)

    run_in_world(story)


def test_namespace_whose_deletion_is_unknown_accepts_no_items(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def unseen(self: MemoryCatalog, version: int) -> None:
        """Delay the next read of the catalog."""
        await asyncio.sleep(1_000)

    monkeypatch.setattr(MemoryCatalog, "wait_for_change", unseen)

    async def story(world: World) -> None:
        catalog = await install_gated_catalog(world)
        engine = await world.counted_engine()
        catalog.failure = CatalogUnknownOutcome("the folder cannot be synced")
        with pytest.raises(UnknownOutcome, match="synced"):
            await engine.admin.delete("other", world.deadline_in(5))
        with pytest.raises(NamespaceNotFound):
            engine.namespaces.settings_of("other")

    run_in_world(story)


@pytest.mark.parametrize(
    "failure", [CatalogUnreachable("the session is suspended"), CatalogUnknownOutcome("no answer")]
)
def test_start_waits_until_the_catalog_is_reachable(failure: CatalogError, caplog: pytest.LogCaptureFixture) -> None:
    async def story(world: World) -> None:
        catalog = await install_gated_catalog(world)
        original_load = catalog.load

        async def fails() -> Document:
            raise failure

        catalog.load = fails  # type: ignore[method-assign]
        starting = asyncio.ensure_future(world.engine())
        await world.pass_s(30)
        assert not starting.done()
        catalog.load = original_load  # type: ignore[method-assign]
        await pause(await starting, "t")

    run_in_world(story)
    [message] = [record.message for record in caplog.records if "cannot be read yet" in record.message]
    assert str(failure) in message


def test_start_fails_on_a_damaged_catalog() -> None:
    async def story(world: World) -> None:
        catalog = await install_gated_catalog(world)

        async def damaged() -> Document:
            raise CatalogFailed("catalog.json is damaged: line 1")

        catalog.load = damaged  # type: ignore[method-assign]
        with pytest.raises(CatalogFailed, match="line 1"):
            await world.engine()

    run_in_world(story)


def test_unreadable_catalog_changes_nothing_and_is_logged_once() -> None:
    async def story(world: World) -> None:
        catalog = await install_gated_catalog(world)
        engine = await world.engine()
        original_load = catalog.load

        async def damaged() -> Document:
            raise CatalogFailed("catalog.json is damaged: line 1")

        catalog.load = damaged  # type: ignore[method-assign]
        with pytest.raises(Unavailable, match="line 1"):
            await pause(engine, "t")
        await Caller(world, engine).put()
        catalog.load = original_load  # type: ignore[method-assign]
        await pause(engine, "t")

    run_in_world(story)


@pytest.mark.parametrize("failure", [CatalogFailed("it cannot be read"), RuntimeError("nobody foresaw this")])
def test_change_that_could_not_be_applied_is_applied_later(failure: Exception) -> None:
    async def story(world: World) -> None:
        catalog = await install_gated_catalog(world)
        engine = await world.engine()
        stored, original_load = await catalog.load(), catalog.load
        failed: list[Exception] = []

        async def fails() -> Document:
            failed.append(failure)
            raise failure

        catalog.load = fails  # type: ignore[method-assign]
        await MemoryCatalog.replace(catalog, changes.pause(stored, "default", "t", paused=True))
        await world.until(lambda: bool(failed))
        assert not engine.namespaces.paused_topics
        catalog.load = original_load  # type: ignore[method-assign]
        await world.until(lambda: bool(engine.namespaces.paused_topics), within_s=5)

    run_in_world(story)


def test_fields_of_a_newer_version_are_kept_and_named_once_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def story(world: World) -> None:
        catalog = await install_gated_catalog(world)
        engine = await world.engine()
        stored = await catalog.load()
        newer = {"default": replace(stored.namespaces["default"], unknown={"paussed": [], "settings": {"order": 1}})}
        await MemoryCatalog.replace(catalog, replace(stored, version=stored.version + 1, namespaces=newer))
        await world.until(lambda: engine.namespaces.document.version > stored.version)
        await pause(engine, "t")
        assert (await catalog.load()).namespaces["default"].unknown == newer["default"].unknown

    run_in_world(story)
    [message] = [record.message for record in caplog.records if "does not know" in record.message]
    assert message.endswith("keeps them: namespaces.default.paussed, namespaces.default.settings.order")


def test_document_that_was_read_before_a_newer_one_applied_does_not_replace_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        catalog = await install_gated_catalog(world)
        engine = await world.engine()
        load, is_loaded, gate = catalog.load, asyncio.Event(), asyncio.Event()

        async def load_slowly() -> Document:
            monkeypatch.setattr(catalog, "load", load)
            document = await load()
            is_loaded.set()
            await gate.wait()
            return document

        monkeypatch.setattr(catalog, "load", load_slowly)
        refreshing = start_task(engine.admin.refresh())
        await is_loaded.wait()
        await MemoryCatalog.replace(catalog, changes.pause(await catalog.load(), "default", "t", paused=True))
        await world.until(lambda: bool(engine.namespaces.paused_topics), within_s=1)
        gate.set()
        await refreshing
        assert engine.namespaces.paused_topics

    run_in_world(story)


def test_restored_copy_with_a_lower_version_applies() -> None:
    async def story(world: World) -> None:
        catalog = await install_gated_catalog(world)
        engine = await world.engine()
        copy = await catalog.load()
        await pause(engine, "t")
        await pause(engine, "u")
        await MemoryCatalog.replace(catalog, changes.pause(await catalog.load(), "default", "v", paused=True))
        await world.until(lambda: len(engine.namespaces.paused_topics) == 3)
        catalog.restore_and_notify(copy)
        await world.until(lambda: not engine.namespaces.paused_topics, within_s=1)

    run_in_world(story)


CALLS: list[Callable[[World, Engine], Coroutine[Any, Any, Any]]] = [
    lambda w, e: e.admin.update("none", None, {"weight": 1}, w.deadline_in(5)),
    lambda w, e: e.admin.delete("none", w.deadline_in(5)),
    lambda w, e: e.admin.grant("none", "p", frozenset(), w.deadline_in(5)),
    lambda w, e: e.admin.pause("none", "t", w.deadline_in(5), paused=True),
]


@pytest.mark.parametrize("call", CALLS)
def test_missing_namespace_is_not_found(call: Callable[[World, Engine], Coroutine[Any, Any, Any]]) -> None:
    async def story(world: World) -> None:
        engine = await world.engine()
        with pytest.raises(NamespaceNotFound):
            await call(world, engine)

    run_in_world(story)


def test_retry_policies_are_never_missing_while_a_catalog_is_applied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With SQLite, another thread decides a flush and may read the policies at any moment."""

    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        names = set(engine.namespaces.retry_policies)
        assert names >= {"default", "other"}
        seen: list[set[str]] = []

        def policy(*values: Any) -> RetryPolicy:
            seen.append(set(engine.namespaces.retry_policies))
            return RetryPolicy(*values)

        monkeypatch.setattr(namespaces, "RetryPolicy", policy)
        await engine.admin.pause("default", "t", world.deadline_in(5), paused=True)
        assert seen
        assert all(names <= found for found in seen)

    run_in_world(story)
