"""The statements of an outbox over Django's own connection, in its open transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import connections

from foqs_client.outbox import relay_sql
from foqs_client.outbox.outbox_sql import DEFAULT_PREFIX
from foqs_client.outbox.user_connections import user_connection


class DjangoStatements:
    """Runs statements of `relay_sql` in a database of Django's settings. Raises what Django raises."""

    def __init__(self, database: str) -> None:
        self._user = user_connection(connections[database])

    def query(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows that a statement finds."""
        return self._user.query(self._text(statement), values)

    def execute(self, statement: str, values: Sequence[Any] = ()) -> int:
        """Return the number of rows that a statement has changed."""
        return self._user.execute(self._text(statement), values)

    def _text(self, statement: str) -> str:
        return relay_sql.for_driver(statement, DEFAULT_PREFIX, "?", self._user.dialect)
