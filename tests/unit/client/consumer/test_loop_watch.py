"""Tests the watch of the event loop: a handler that blocks it is named while it does."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from foqs_client import Delivery
from foqs_client.consumer import Job, loop_watch
from foqs_client.consumer.handler_runners import TaskRunner
from tests.support.aio import run


class Lines(logging.Handler):
    """Keeps lines of the log, and sets an event at the first."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.has_one = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())
        self.has_one.set()


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Lines:
    monkeypatch.setattr(loop_watch, "BLOCKED_S", 0.02)
    lines = Lines()
    monkeypatch.setattr(loop_watch.log, "handlers", [lines])
    return lines


def test_handler_that_blocks_the_event_loop_is_named(lines: Lines) -> None:
    async def main() -> None:
        ended = asyncio.Event()

        async def handle(job: Job) -> None:
            assert lines.has_one.wait(60)  # blocks the event loop until the log says so

        runners = [TaskRunner(handle), TaskRunner(handle)]
        for runner in runners:
            await runner.start()
        runners[1].submit(Job(Delivery(id="3-7", topic="mail"), lambda *_: None), lambda *_: ended.set())
        await ended.wait()
        for runner in runners:
            await runner.close()

    run(main())
    [text] = lines.texts
    assert "because of the handler of item 3-7 of mail" in text
    assert "test_loop_watch.py" in text
    assert "in handle" in text
    assert loop_watch._watches == {}


def test_task_that_blocks_the_event_loop_is_named_by_its_place(lines: Lines) -> None:
    async def main() -> None:
        async def part() -> None:
            assert lines.has_one.wait(60)

        async def handle(job: Job) -> None:
            await asyncio.create_task(part())

        ended = asyncio.Event()
        runner = TaskRunner(handle)
        await runner.start()
        runner.submit(Job(Delivery(id="3-7"), lambda *_: None), lambda *_: ended.set())
        await ended.wait()
        await runner.close()

    run(main())
    [text] = lines.texts
    assert "because of a task that is no handler's" in text
    assert "in part" in text
