"""Tests of `foqs worker` before its first dequeue: an app that cannot run is reported in a sentence."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import Result

from foqs_client import InvalidArgument, NamespaceNotFound, TopicPage, Unreachable
from foqs_client.consumer import Job, Worker
from foqs_client.consumer.process_runner import reference_of
from tests.unit.cli.commands.test_item_commands import FakeClient, client, run

__all__ = ["client", "run"]

PROGRAM = """
from foqs_client.consumer import Worker

worker = Worker()
empty = Worker()
number = 5

@worker.task("mail.*")
async def mail(job):
    pass

def plain(job):
    pass
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "shop_jobs.py").write_text(PROGRAM)
    (tmp_path / "shop_broken.py").write_text("raise ValueError('half done')\n")
    (tmp_path / "shop_needs.py").write_text("import not_there_at_all\n")
    yield tmp_path
    for name in ("shop_jobs", "shop_broken", "shop_needs"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        ("shop_jobs", 2, "is not MODULE:APP"),
        ("shop_absent:worker", 2, "There is no module 'shop_absent'"),
        ("shop_needs:worker", 2, "shop_needs cannot be imported: No module named 'not_there_at_all'"),
        ("shop_broken:worker", 2, "shop_broken cannot be imported: ValueError: half done"),
        ("shop_jobs:wrker", 2, "has no 'wrker'; it has worker, empty"),
        ("shop_jobs:empty", 2, "has no task"),
        ("shop_jobs:number", 2, "neither a Worker nor a function, but int"),
        ("shop_jobs:plain", 2, "--topic"),
        ("shop_jobs:worker --topic mail", 2, "name their topics"),
        ("shop_jobs:mail --topic mail --processes 2", 2, "make it a plain function"),
        ("shop_jobs:plain --topic mail --concurrency 5 --in-flight 3", 2, "in_flight"),
        ("shop_jobs:worker --drain-timeout 5s", 2, "The option --drain-timeout is now called --stop-timeout."),
    ],
)
def test_invalid_app_is_reported(
    run: Callable[..., Result], client: FakeClient, args: str, code: int, said: str
) -> None:
    client.answers["topics"] = TopicPage([], None)
    result = run("worker", *args.split())
    assert result.exit_code == code
    assert said in result.stderr
    assert all(name == "topics" for name, _, _ in client.calls)


@pytest.mark.parametrize(("error", "code"), [(Unreachable("no host"), 3), (NamespaceNotFound("no namespace"), 4)])
def test_missing_host_or_namespace_is_reported(
    run: Callable[..., Result], client: FakeClient, error: Exception, code: int
) -> None:
    client.answers["topics"] = error
    result = run("worker", "shop_jobs:worker")
    assert result.exit_code == code
    assert "no " in result.stderr


def module_level(job: Job) -> None: ...


def test_only_importable_handlers_run_in_processes() -> None:
    def nested(job: Job) -> None: ...

    assert reference_of(module_level).name == "module_level"
    for handler in (nested, lambda job: None, functools.partial(module_level)):
        with pytest.raises(InvalidArgument, match="plain function at the top of a module"):
            reference_of(handler)


def test_topic_belongs_to_the_handler_that_was_registered_first() -> None:
    worker = Worker(concurrency=3)

    @worker.task("mail.vip", concurrency=1)
    def vip(job: Job) -> None: ...

    worker.add(module_level, "mail.*", "sms")
    assert vip.__name__ == "vip"  # registering it changes nothing
    first, second = worker.consumers(FakeClient())  # type: ignore[arg-type]
    assert (first.concurrency, second.concurrency) == (1, 3)
    assert [consumer.covers("mail.vip") for consumer in (first, second)] == [True, False]
    assert second.covers("mail.other")


def test_a_task_needs_topics() -> None:
    with pytest.raises(InvalidArgument, match="name the topics"):
        Worker().task()(module_level)
    with pytest.raises(InvalidArgument, match="no task"):
        Worker().consumers(FakeClient())  # type: ignore[arg-type]
