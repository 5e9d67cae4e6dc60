"""docs/django.md: its project works as written, and a task whose workers are killed runs again."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from foqs_client import SyncClient
from tests.support.django_page import FILES, Project
from tests.support.outbox_databases import running_postgres
from tests.support.poll import until
from tests.support.processes import RestartableHost

LEASE_MS: Final = 5_000
"""Longer than a worker usually stands still on a busy machine, and short enough to wait for its end."""
HANGING_TASK: Final = """

import os
import threading
from pathlib import Path


@task
def hang_twice(path):
    with Path(path).open("a") as file:
        file.write(f"{os.getpid()}\\n")
    if len(Path(path).read_text().splitlines()) < 3:
        threading.Event().wait()
    return "done"
"""

pytestmark = pytest.mark.process


@pytest.fixture
def host(tmp_path: Path) -> Iterator[RestartableHost]:
    with RestartableHost(tmp_path / "host", "memory:", {"namespace.lease_ms_default": LEASE_MS}) as host:
        host.start()
        yield host


def test_the_project_of_the_page_works_as_written(tmp_path: Path, host: RestartableHost) -> None:
    project = Project(tmp_path, host)
    project.create_tables()
    project.run("manage.py", "check", "--database", "default", "--fail-level", "WARNING")
    id, status = project.run("buy.py").split()
    assert status == "READY"
    with project.running("foqs_relay"), project.running("foqs_worker"):
        until(lambda: project.result("thank", id)[0] == "SUCCESSFUL", "the task is done")

    assert project.result("thank", id) == ["SUCCESSFUL", "Thank you for order 1, Ada\n"]


@pytest.mark.postgres
def test_a_task_whose_worker_and_then_whose_process_is_killed_runs_again(tmp_path: Path, host: RestartableHost) -> None:
    begun = tmp_path / "begun"

    def pids() -> list[int]:
        return [int(line) for line in begun.read_text().splitlines()] if begun.exists() else []

    with ExitStack() as stack:
        postgres = stack.enter_context(running_postgres())
        project = Project(tmp_path, host)
        place = f'"NAME": "postgres", "USER": "postgres", "HOST": "{postgres.folder}", "PORT": {postgres.port}'
        project.append(
            "settings.py", f'DATABASES["default"] = {{"ENGINE": "django.db.backends.postgresql", {place}}}\n'
        )
        project.append("settings.py", 'TASKS["default"]["OPTIONS"]["atomic"] = True\n')
        project.append("shop/tasks.py", HANGING_TASK)
        project.create_tables()
        code = FILES["buy.py"].replace("thank.enqueue(order.pk)", f"hang_twice.enqueue({str(begun)!r})")
        id = project.run("-c", code.replace("import thank", "import hang_twice")).split()[0]
        stack.enter_context(project.running("foqs_relay"))
        with project.running("foqs_worker") as worker:
            until(lambda: len(pids()) == 1, "the worker has begun the task")
            worker.kill()
        project.append("settings.py", 'TASKS["default"]["OPTIONS"]["processes"] = 1\n')
        with project.running("foqs_worker"):
            until(lambda: len(pids()) == 2, "a process of the second worker has begun the task")
            os.kill(pids()[1], signal.SIGKILL)
            until(lambda: project.result("hang_twice", id)[0] == "SUCCESSFUL", "the task is done")

        assert len(pids()) == len(set(pids())) == 3
        with SyncClient(host.address) as client:
            until(lambda: not client.topics(states=["ready", "leased", "deferred"]).topics, "its item is acked")
