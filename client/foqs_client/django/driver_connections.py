"""Connections of a driver to a database of Django's settings, apart from those that Django keeps.

Always true: such a connection commits each statement, is not of a pool, and gives up after a time if the server does not
answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from django.db import connections

from foqs_client.outbox.outbox_connection import OutboxConnection
from foqs_client.outbox.outbox_sql import Dialect, dialect_named
from foqs_client.outbox.user_databases import ANSWER_TIMEOUT_S, CONNECT_TIMEOUT_S

_TIMEOUTS: Final[Mapping[str, Mapping[str, int]]] = {
    "django.db.backends.mysql.base": {
        "connect_timeout": CONNECT_TIMEOUT_S,
        "read_timeout": ANSWER_TIMEOUT_S,
        "write_timeout": ANSWER_TIMEOUT_S,
    },
    "django.db.backends.postgresql.base": {
        "connect_timeout": CONNECT_TIMEOUT_S,
        "tcp_user_timeout": ANSWER_TIMEOUT_S * 1_000,
    },
}
"""By the module of Django's connection. Options of the settings replace them."""


def dialect_of(database: str) -> Dialect:
    """Return the kind of a database. Raises InvalidArgument: it has no outbox."""
    return dialect_named(connections[database].vendor)


def connect(database: str) -> Any:
    """Open a connection of the driver. Raises what the driver raises."""
    own = copy_of(connections[database])
    own.connect()
    return own.connection


def copy_of(django: Any) -> Any:
    """Return a connection of Django of the same settings, which is not open."""
    options = {**_TIMEOUTS.get(_backend_module(django), {}), **django.settings_dict["OPTIONS"]}
    options.pop("pool", None)
    return type(django)({**django.settings_dict, "OPTIONS": options, "AUTOCOMMIT": True}, django.alias)


def _backend_module(connection: Any) -> str:
    """Return the module of Django from which a connection's class is, also if a project has derived its own."""
    return next((kind.__module__ for kind in type(connection).__mro__ if kind.__module__ in _TIMEOUTS), "")


def outbox_connection(database: str) -> OutboxConnection:
    """Return a connection to the outbox of a database, which is opened when it is needed. Raises InvalidArgument."""
    return OutboxConnection(lambda: connect(database), dialect_of(database))
