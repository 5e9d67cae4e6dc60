"""The in-process registry: its file, and sessions that disconnect, reconnect and end, under virtual time."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from foqs.testing.virtual_loop import VirtualClock
from shardmgr.registry.port import ConnectionState, RegistryFailed, RegistryOutcomeUnknown, VersionedDocument
from tests.support.local_ensemble import LocalEnsemble, LocalRegistry
from tests.support.virtual_time import SimulatedLoop, run_virtual

TIMEOUT_MS = 6_000


def run_story(story: Callable[[LocalEnsemble], Coroutine[Any, Any, None]], path: Path | None = None) -> None:
    """Plays a story on an ensemble under virtual time."""

    async def play() -> None:
        await story(LocalEnsemble(path, VirtualClock(asyncio.get_running_loop()).monotonic_ms))

    run_virtual(play)


async def joined(ensemble: LocalEnsemble) -> LocalRegistry:
    registry = ensemble.registry(TIMEOUT_MS)
    await registry.open()
    return registry


# ------------------------------------------------------------------------ file


def test_documents_and_their_versions_survive_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "coordinator.json"
    data = bytes(range(256)) + "ü𝄞\ud800".encode("utf-8", "surrogatepass")

    async def write(ensemble: LocalEnsemble) -> None:
        registry = await joined(ensemble)
        await registry.replace("plan", b"old", None)
        await registry.replace("plan", data, 0)
        await registry.announce("members", "a", b"gone with its session")

    async def read(ensemble: LocalEnsemble) -> None:
        registry = await joined(ensemble)
        assert await registry.read("plan") == VersionedDocument(data, 1)
        assert await registry.members("members") == {}

    run_story(write, path)
    run_story(read, path)
    assert [entry.name for entry in path.parent.iterdir()] == ["coordinator.json"]


@pytest.mark.parametrize(
    "content", ["[]", "{", '{"epochs": {"1": 2}}', '{"documents": {"a": {"version": 1, "data": 2}}}']
)
def test_a_damaged_file_is_named_with_the_remedy(tmp_path: Path, content: str) -> None:
    path = tmp_path / "coordinator.json"
    path.write_text(content)

    async def story(ensemble: LocalEnsemble) -> None:
        with pytest.raises(RegistryFailed, match=r"coordinator\.json .* move it away"):
            await joined(ensemble)

    run_story(story, path)


def test_a_document_that_cannot_be_saved_does_not_exist(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "coordinator.json"

    async def story(ensemble: LocalEnsemble) -> None:
        registry = await joined(ensemble)
        path.parent.write_text("in the way")
        with pytest.raises(RegistryFailed, match="cannot write"):
            await registry.replace("plan", b"1", None)
        assert await registry.read("plan") is None
        path.parent.unlink()
        assert await registry.replace("plan", b"1", None) == 0

    run_story(story, path)


def test_a_document_is_synced_before_the_rename_and_its_folder_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "coordinator.json"
    seen: list[tuple[bool, bool]] = []

    def note(descriptor: int) -> None:
        seen.append((path.exists(), os.path.isdir(f"/proc/self/fd/{descriptor}")))  # noqa: PTH112

    monkeypatch.setattr(os, "fsync", note)

    async def story(ensemble: LocalEnsemble) -> None:
        await (await joined(ensemble)).replace("plan", b"1", None)

    run_story(story, path)
    assert seen == [(False, False), (True, True)]


def test_a_folder_that_cannot_be_synced_leaves_the_outcome_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = iter((False, True))

    def fail(descriptor: int) -> None:
        if next(calls, False):
            raise OSError(5, "input/output error")

    monkeypatch.setattr(os, "fsync", fail)

    async def story(ensemble: LocalEnsemble) -> None:
        registry = await joined(ensemble)
        with pytest.raises(RegistryOutcomeUnknown, match="input/output error"):
            await registry.replace("plan", b"1", None)
        assert await registry.read("plan") is None

    run_story(story, tmp_path / "coordinator.json")


# -------------------------------------------------------------------- sessions


def test_a_disconnected_user_fails_its_calls_and_keeps_its_session_if_it_reconnects_in_time() -> None:
    async def story(ensemble: LocalEnsemble) -> None:
        one, other = await joined(ensemble), await joined(ensemble)
        await one.announce("members", "a", b"1")
        ensemble.disconnect(one)
        assert one.connection_state is ConnectionState.SUSPENDED
        with pytest.raises(RegistryFailed):
            await one.read("plan")
        await asyncio.sleep((TIMEOUT_MS - 1) / 1000)
        assert await other.members("members") == {"a": b"1"}
        ensemble.reconnect(one)
        assert (one.connection_state, one.session_number) == (ConnectionState.CONNECTED, 1)
        await asyncio.sleep(2 * TIMEOUT_MS / 1000)
        assert await other.members("members") == {"a": b"1"}

    run_story(story)


def test_a_user_that_is_disconnected_for_too_long_gets_a_new_session() -> None:
    async def story(ensemble: LocalEnsemble) -> None:
        one, other = await joined(ensemble), await joined(ensemble)
        await one.announce("members", "a", b"1")
        links: list[tuple[ConnectionState, int]] = []
        one.subscribe(lambda: links.append((one.connection_state, one.session_number)))
        ensemble.disconnect(one)
        await asyncio.sleep(2 * TIMEOUT_MS / 1000)
        assert one.connection_state is ConnectionState.LOST
        assert await other.members("members") == {}
        ensemble.reconnect(one)
        await asyncio.sleep(0.001)
        assert (one.connection_state, one.session_number) == (ConnectionState.CONNECTED, 2)
        assert (ConnectionState.SUSPENDED, 1) in links
        assert (ConnectionState.LOST, 1) in links
        assert links[-1] == (ConnectionState.CONNECTED, 2)

    run_story(story)


def test_a_session_ends_after_the_moment_that_was_announced() -> None:
    async def story(ensemble: LocalEnsemble) -> None:
        clock = VirtualClock(asyncio.get_running_loop())
        one, other = await joined(ensemble), await joined(ensemble)
        await one.announce("members", "a", b"1")
        gone = asyncio.Event()
        await asyncio.sleep(1.2345)
        ensemble.disconnect(one)
        until_ms = one.alive_until_ms
        other.subscribe(gone.set)
        await gone.wait()
        assert clock.monotonic_ms() >= until_ms
        assert one.alive_until_ms == until_ms

    run_story(story)


def test_a_disconnected_user_learns_of_the_end_of_its_session_when_it_reconnects() -> None:
    async def story(ensemble: LocalEnsemble) -> None:
        one, other = await joined(ensemble), await joined(ensemble)
        await one.announce("members", "a", b"1")
        ensemble.disconnect(one)
        ensemble.expire(one)
        assert (one.connection_state, one.session_number) == (ConnectionState.SUSPENDED, 1)
        assert await other.members("members") == {}
        ensemble.reconnect(one)
        assert (one.connection_state, one.session_number) == (ConnectionState.LOST, 1)
        await asyncio.sleep(0)
        assert (one.connection_state, one.session_number) == (ConnectionState.CONNECTED, 2)

    run_story(story)


def test_no_user_can_start_while_the_service_is_unreachable() -> None:
    async def story(ensemble: LocalEnsemble) -> None:
        registry = ensemble.registry(TIMEOUT_MS)
        ensemble.disconnect(registry)
        with pytest.raises(RegistryFailed, match="does not answer"):
            await registry.open()
        ensemble.reconnect(registry)
        await registry.open()
        assert registry.session_number == 1

    run_story(story)


def test_the_session_of_a_user_that_closes_while_disconnected_times_out() -> None:
    async def story(ensemble: LocalEnsemble) -> None:
        one, other = await joined(ensemble), await joined(ensemble)
        await one.announce("members", "a", b"1")
        ensemble.disconnect(one)
        await one.close()
        assert await other.members("members") == {"a": b"1"}
        await asyncio.sleep(2 * TIMEOUT_MS / 1000)
        assert await other.members("members") == {}

    run_story(story)


def test_a_killed_process_is_not_notified_and_its_session_ends() -> None:
    async def story(ensemble: LocalEnsemble) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        events: list[str] = []

        async def live() -> LocalRegistry:
            registry = await joined(ensemble)
            registry.subscribe(lambda: events.append("dead"))
            await registry.announce("members", "a", b"1")
            return registry

        process = loop.process("host")
        registry = await process.spawn(live())
        other = await joined(ensemble)
        process.kill()
        events.clear()
        ensemble.disconnect(registry)
        await asyncio.sleep(2 * TIMEOUT_MS / 1000)
        assert await other.members("members") == {}
        assert events == []

    run_story(story)
