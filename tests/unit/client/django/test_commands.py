"""The commands of `manage.py`: what they refuse before they ask a host, and how they connect to the database."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connections
from django.db.backends.postgresql.base import DatabaseWrapper

from foqs_client.django.driver_connections import copy_of
from tests.support import django_project

assert django_project.QUEUES, "its import has configured Django"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"backend": "nowhere"}, "The connection 'nowhere' doesn't exist"),
        ({"queue": ["mail", "mial"]}, r"has no queue 'mial'; it has: default, mail, slow"),
        ({"concurrency": 0}, "--concurrency is 0; give a number from 1 to 10000"),
    ],
)
def test_a_worker_refuses_a_wrong_option(options: dict[str, Any], text: str) -> None:
    with pytest.raises(CommandError, match=text):
        call_command("foqs_worker", **options)


def test_the_connection_of_a_relay_gives_up_after_a_time() -> None:
    settings = {**connections.settings["default"], "NAME": "shop", "OPTIONS": {"connect_timeout": 3, "pool": True}}
    found = copy_of(DatabaseWrapper(settings, "default")).get_connection_params()

    assert (found["connect_timeout"], found["tcp_user_timeout"]) == (3, 60_000)
    assert "pool" not in found
