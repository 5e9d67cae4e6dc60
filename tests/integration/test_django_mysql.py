"""Tasks of Django on MariaDB and MySQL, with PyMySQL, and while the database is away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from foqs_client import SyncClient
from tests.support.django_page import FILES, Project
from tests.support.mariadb import MariaDb
from tests.support.mysql9 import MYSQL9_IF_LONG, running
from tests.support.poll import until
from tests.support.processes import RestartableHost

SETTINGS: Final = """
import pymysql

pymysql.install_as_MySQLdb()
OPTIONS = {{"unix_socket": {socket!r}}}
DATABASES["default"] = {{"ENGINE": "django.db.backends.mysql", "NAME": {name!r}, "USER": "root", "OPTIONS": OPTIONS}}
TASKS["default"]["OPTIONS"] |= {{"atomic": True, "attempts_max": 1}}
del TASKS["default"]["OPTIONS"]["queues"]
"""
ROLLED_BACK: Final = """
try:
    with transaction.atomic():
        order = Order.objects.create(customer="Bob")
        thank.enqueue(order.pk)
        raise ArithmeticError
except ArithmeticError:
    print(Order.objects.count())
"""
pytestmark = [pytest.mark.process, pytest.mark.mysql]


@pytest.fixture(params=MYSQL9_IF_LONG)
def server(request: pytest.FixtureRequest) -> Iterator[MariaDb]:
    with running(request.param) as server:
        yield server


def test_tasks_run_and_outlast_a_database_that_is_away(tmp_path: Path, server: MariaDb) -> None:
    # A task has one attempt, and a slow machine must not end its lease.
    with RestartableHost(tmp_path / "host", "memory:", {"namespace.lease_ms_default": 600_000}) as host:
        host.start()
        project = Project(tmp_path, host)
        project.append("settings.py", SETTINGS.format(socket=str(server.socket), name=server.database()))
        project.create_tables()
        project.run("manage.py", "check", "--database", "default", "--fail-level", "WARNING")
        buy, _ = FILES["buy.py"].split("with transaction.atomic", 1)
        assert project.run("-c", buy + ROLLED_BACK) == "0\n"
        id = project.run("buy.py").split()[0]
        with project.running("foqs_relay"), SyncClient(host.address) as client:
            with project.running("foqs_worker"):
                until(lambda: project.result("thank", id)[0] == "SUCCESSFUL", "the task is done")
            assert project.result("thank", id) == ["SUCCESSFUL", "Thank you for order 2, Ada\n"], (
                "a number of a rollback is gone"
            )
            id = project.run("buy.py").split()[0]
            until(lambda: bool(client.topics(states=["ready"]).topics), "the second task is in the queue")
            server.kill9()
            with project.running("foqs_worker"):
                until(lambda: "handlers cannot begin" in project.log("foqs_worker").read_text(), "the worker waits")
                server.start()
                until(lambda: project.result("thank", id)[0] == "SUCCESSFUL", "it is done in its only attempt")
            assert not client.topics(states=["ready", "leased", "deferred", "dead"]).topics
