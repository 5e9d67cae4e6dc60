"""Connections of a driver to a database of Django's settings, apart from those that Django keeps.

Always true: such a connection commits each statement, and is not of a pool.
"""

from __future__ import annotations

from typing import Any

from django.db import connections

from foqs_client.outbox.outbox_connection import OutboxConnection
from foqs_client.outbox.outbox_sql import Dialect, dialect_named


def dialect_of(database: str) -> Dialect:
    """Return the kind of a database. Raises InvalidArgument: it has no outbox."""
    return dialect_named(connections[database].vendor)


def connect(database: str) -> Any:
    """Open a connection of the driver. Raises what the driver raises."""
    django = connections[database]
    options = {name: value for name, value in django.settings_dict["OPTIONS"].items() if name != "pool"}
    own = type(django)({**django.settings_dict, "OPTIONS": options, "AUTOCOMMIT": True}, database)
    own.connect()
    return own.connection


def outbox_connection(database: str) -> OutboxConnection:
    """Return a connection to the outbox of a database, which is opened when it is needed. Raises InvalidArgument."""
    return OutboxConnection(lambda: connect(database), dialect_of(database))
