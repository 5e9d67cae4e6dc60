"""The errors that only an outbox raises. After each of them nothing was written."""

from __future__ import annotations

from foqs_client.errors import FoqsError


class NotInTransaction(FoqsError):
    """The connection would commit each statement by itself, so the items could be there without the user's data."""

    code = "NOT_IN_TRANSACTION"
