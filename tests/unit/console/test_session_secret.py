"""The secret of the console's sessions: all hosts get the same one, and a new one ends all sessions."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from foqs.console.session_secret import (
    DOCUMENT_NAME,
    READ_INTERVAL_S_MAX,
    READ_INTERVAL_S_MIN,
    SECRET_BYTES,
    SessionSecret,
    replace_secret,
    secret_file,
)
from foqs.queue.bulk_jobs.bulk_job_store import Documents, LocalDocuments
from shardmgr.registry.port import RegistryConflict
from tests.support.bulk_job_world import SharedDocuments
from tests.support.virtual_time import run_virtual


def run_story(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    run_virtual(story, until_s=1_000)


async def until(condition: Callable[[], bool], within_s: float) -> None:
    end_s = asyncio.get_running_loop().time() + within_s
    while not condition():
        assert asyncio.get_running_loop().time() < end_s, "the condition does not come true"
        await asyncio.sleep(0.01)


async def values(*hosts: SessionSecret) -> set[bytes | None]:
    await asyncio.gather(*(host.refresh() for host in hosts))
    return {host.value for host in hosts}


def test_hosts_that_start_at_once_agree_on_one_secret() -> None:
    async def story() -> None:
        documents = SharedDocuments()
        hosts = [SessionSecret(documents) for _ in range(3)]
        (value,) = await values(*hosts)
        assert value is not None
        assert len(value) == SECRET_BYTES
        assert documents.writes == 1
        assert await values(SessionSecret(documents)) == {value}
        assert await values(SessionSecret(SharedDocuments())) != {value}

    run_story(story)


def test_lost_answer_to_the_creation_is_read_back() -> None:
    async def story() -> None:
        documents = SharedDocuments()
        documents.lost_replies = 1
        host = SessionSecret(documents)
        await host.refresh()
        assert host.value is None
        (value,) = await values(host, SessionSecret(documents))
        assert value is not None
        assert documents.writes == 1

    run_story(story)


def test_there_are_no_sessions_until_the_coordinator_answers_once_and_then_they_outlive_it() -> None:
    async def story() -> None:
        documents = SharedDocuments()
        documents.is_down = True
        host = SessionSecret(documents)
        following = asyncio.ensure_future(host.run())
        await host.refresh()
        assert host.value is None
        documents.is_down = False
        await until(lambda: host.value is not None, READ_INTERVAL_S_MAX + 1)
        value = host.value
        documents.is_down = True
        await asyncio.sleep(100)
        assert host.value == value
        following.cancel()

    run_story(story)


def test_replaced_secret_reaches_every_host_in_about_a_second() -> None:
    async def story() -> None:
        documents = SharedDocuments()
        hosts = [SessionSecret(documents) for _ in range(2)]
        (old,) = await values(*hosts)
        following = [asyncio.ensure_future(host.run()) for host in hosts]
        await replace_secret(documents)
        await until(lambda: all(host.value != old for host in hosts), READ_INTERVAL_S_MIN + 0.2)
        assert hosts[0].value == hosts[1].value
        for task in following:
            task.cancel()

    run_story(story)


def test_often_changed_documents_of_others_cost_one_read_a_second() -> None:
    async def story() -> None:
        documents = SharedDocuments()
        host = SessionSecret(documents)
        await host.refresh()
        following = asyncio.ensure_future(host.run())
        before = documents.reads
        version = await documents.replace("other", b"0", None)
        for _ in range(100):
            version = await documents.replace("other", b"0", version)
            await asyncio.sleep(0.1)
        assert 5 <= documents.reads - before <= 12
        following.cancel()

    run_story(story)


def test_damaged_document_changes_nothing_and_is_not_overwritten(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        documents = SharedDocuments()
        host = SessionSecret(documents)
        await host.refresh()
        value = host.value
        await documents.replace(DOCUMENT_NAME, b'{"format":1,"secret":"0123"}', 1)
        await host.refresh()
        await host.refresh()
        assert host.value == value
        found = await documents.read(DOCUMENT_NAME)
        assert found is not None
        assert found.version == 2
        assert await values(SessionSecret(documents)) == {None}

    run_story(story)
    first = [record.getMessage() for record in caplog.records]
    assert len(first) == 2, "each host says it once"
    assert all("is damaged at secret; delete it" in text and "0123" not in text for text in first)


def test_file_of_a_host_alone_is_for_its_user_only_and_survives_a_restart(tmp_path: Path) -> None:
    async def story() -> None:
        (value,) = await values(SessionSecret(LocalDocuments(tmp_path, is_secret=True)))
        path = secret_file(tmp_path)
        assert path.stat().st_mode & 0o777 == 0o600
        assert value is not None
        assert value.hex() in path.read_text()
        again = SessionSecret(LocalDocuments(tmp_path, is_secret=True))
        assert await values(again) == {value}
        path.unlink()
        (fresh,) = await values(again)
        assert fresh not in (None, value)
        assert path.stat().st_mode & 0o777 == 0o600

    asyncio.run(story())


def test_file_that_others_may_read_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        await values(SessionSecret(LocalDocuments(tmp_path, is_secret=True)))
        secret_file(tmp_path).chmod(0o644)
        assert await values(SessionSecret(LocalDocuments(tmp_path, is_secret=True))) == {None}

    asyncio.run(story())
    assert "others than its owner may use it (mode 644); run: chmod 600" in caplog.text


def test_what_a_crash_left_behind_does_not_make_the_file_readable(tmp_path: Path) -> None:
    left = tmp_path / f"{DOCUMENT_NAME}.json.{os.getpid()}.new"
    left.write_text("{}")
    left.chmod(0o666)

    async def story() -> None:
        await values(SessionSecret(LocalDocuments(tmp_path, is_secret=True)))

    asyncio.run(story())
    assert secret_file(tmp_path).stat().st_mode & 0o777 == 0o600


def test_host_without_a_folder_keeps_its_secret_in_memory() -> None:
    async def story() -> None:
        documents: Documents = LocalDocuments(None, is_secret=True)
        assert await values(SessionSecret(documents)) == await values(SessionSecret(documents)) != {None}
        with pytest.raises(RegistryConflict):
            await documents.replace(DOCUMENT_NAME, b"", None)

    asyncio.run(story())
