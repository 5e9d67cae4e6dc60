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
    """Keeps the first line of the log that has the expected words. A slow machine may block the loop at another place, too."""

    def __init__(self) -> None:
        super().__init__()
        self.expected = ""
        self.text = ""
        self.has_it = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if self.expected in text and not self.text:
            self.text = text
            self.has_it.set()


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Lines:
    monkeypatch.setattr(loop_watch, "BLOCKED_S", 0.02)
    monkeypatch.setattr(loop_watch, "LOG_AGAIN_S", 0.0)
    lines = Lines()
    monkeypatch.setattr(loop_watch.log, "handlers", [lines])
    return lines


def test_handler_that_blocks_the_event_loop_is_named(lines: Lines) -> None:
    lines.expected = "because of the handler of item 3-7 of mail"

    async def main() -> None:
        ended = asyncio.Event()

        async def handle(job: Job) -> None:
            assert lines.has_it.wait(60)  # blocks the event loop until the log says so

        runners = [TaskRunner(handle), TaskRunner(handle), TaskRunner(handle)]
        for runner in runners:
            await runner.start()
        await runners.pop().close()  # while all are idle, so that their jobs are equal
        runners[0].submit(Job(Delivery(id="3-7", topic="mail"), lambda *_: None), lambda *_: ended.set())
        await ended.wait()
        for runner in runners:
            await runner.close()

    run(main())
    assert "test_loop_watch.py" in lines.text
    assert "in handle" in lines.text
    assert loop_watch._watches == {}


def test_task_that_blocks_the_event_loop_is_named_by_its_place(lines: Lines) -> None:
    lines.expected = "in part"

    async def main() -> None:
        async def part() -> None:
            assert lines.has_it.wait(60)

        async def handle(job: Job) -> None:
            await asyncio.create_task(part())

        ended = asyncio.Event()
        runner = TaskRunner(handle)
        await runner.start()
        runner.submit(Job(Delivery(id="3-7"), lambda *_: None), lambda *_: ended.set())
        await ended.wait()
        await runner.close()

    run(main())
    assert "because of a task that is not a handler" in lines.text
    assert "in part" in lines.text
