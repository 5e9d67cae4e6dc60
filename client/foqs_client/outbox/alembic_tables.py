"""The tables of an outbox in a migration of Alembic.

Example:
    from alembic import op
    from foqs_client.outbox import alembic_tables

    def upgrade() -> None:
        alembic_tables.create(op, version=1)

    def downgrade() -> None:
        alembic_tables.drop(op)

`include_name` keeps autogenerate from dropping the tables, which no model describes.
"""

from __future__ import annotations

from typing import Any

from foqs_client.errors import InvalidArgument
from foqs_client.outbox.outbox_sql import (
    DEFAULT_PREFIX,
    TABLES_VERSION,
    create_tables,
    dialect_named,
    drop_tables,
    table_names,
)


def create(op: Any, *, version: int, prefix: str = DEFAULT_PREFIX) -> None:
    """Create the tables that are missing, as they are in a version.

    Args:
        op: `alembic.op`.
        version: a revision creates the same tables for ever; a later release adds a version with its changes.

    Raises:
        InvalidArgument: this release does not know the version, or the prefix is no name of a table.
    """
    if version != TABLES_VERSION:
        raise InvalidArgument(
            f"this release knows version {TABLES_VERSION} of the tables, and not {version!r}; give version={TABLES_VERSION}",
            field="version",
        )
    for statement in create_tables(dialect_named(op.get_context().dialect.name), prefix):
        op.execute(statement)


def drop(op: Any, *, prefix: str = DEFAULT_PREFIX) -> None:
    """Drop the tables, with all rows that were not enqueued yet."""
    for statement in drop_tables(prefix):
        op.execute(statement)


def include_name(name: str | None, kind: str, parents: Any, prefix: str = DEFAULT_PREFIX) -> bool:
    """Return False for the tables of the outbox: the argument `include_name` of `context.configure`."""
    return kind != "table" or name not in table_names(prefix)
