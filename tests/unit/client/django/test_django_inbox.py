"""An inbox over the connections of Django."""

from __future__ import annotations

import pytest
from django.db import connections

from foqs_client import Delivery
from foqs_client.inbox import once
from foqs_client.inbox.inbox_rows import BEFORE_ALL, delete_rows, read_old
from foqs_client.outbox import NotInTransaction
from foqs_client.outbox.user_connections import user_connection

DELIVERY = Delivery("0-1", 5, incarnation=7)


def test_work_is_done_once_in_a_transaction_of_django(project: None) -> None:
    assert once("default", DELIVERY) is True
    assert once(connections["default"], DELIVERY) is False

    tables = user_connection("default")
    rows = read_old(tables, "foqs_", 0, BEFORE_ALL)
    assert [(row.id, row.token) for row in rows] == [("0-1", 5)]
    delete_rows(tables, "foqs_", rows)
    assert once("default", DELIVERY) is True


def test_a_connection_of_django_without_a_transaction_is_refused(committing_project: None) -> None:
    with pytest.raises(NotInTransaction, match=r"transaction\.atomic"):
        once("default", DELIVERY)
