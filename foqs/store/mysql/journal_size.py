"""Reads how large the journal in a shard's tables is, without an owner and without the journal's bytes."""

from __future__ import annotations

from foqs.store.mysql.mysql_driver import MysqlLink, ServerError
from foqs.store.mysql.mysql_journal_sql import journal_size
from foqs.store.mysql.schema_upgrade import DENIED_CODES, NO_SUCH_TABLE_CODE


async def read_journal_size(link: MysqlLink, shard: int) -> tuple[int, int] | None:
    """Return how many flushes the journal has, and about how many bytes its table takes; None if that cannot be read.

    Rows below the floor count until they are trimmed, and room that is free within the table counts as bytes.
    """
    try:
        _, flushes, size = await link.run(*journal_size(shard))
    except ServerError as error:
        if error.code not in (NO_SUCH_TABLE_CODE, *DENIED_CODES):
            raise
        return None
    return int(flushes.rows[0][0]), int(size.rows[0][0])
