"""The tables of an outbox in a migration of Alembic.

Example:
    from alembic import op
    from foqs_client.outbox import alembic_tables

    def upgrade() -> None:
        alembic_tables.create(op)

    def downgrade() -> None:
        alembic_tables.drop(op)

`include_name` keeps autogenerate from dropping the tables, which no model describes.
"""

from __future__ import annotations

from typing import Any

from foqs_client.outbox.outbox_sql import DEFAULT_PREFIX, create_tables, dialect_named, drop_tables, table_names


def create(op: Any, prefix: str = DEFAULT_PREFIX) -> None:
    """Create the tables that are missing. `op` is `alembic.op`."""
    for statement in create_tables(dialect_named(op.get_context().dialect.name), prefix):
        op.execute(statement)


def drop(op: Any, prefix: str = DEFAULT_PREFIX) -> None:
    """Drop the tables, with all rows that were not enqueued yet."""
    for statement in drop_tables(prefix):
        op.execute(statement)


def include_name(name: str | None, kind: str, parents: Any, prefix: str = DEFAULT_PREFIX) -> bool:
    """Return False for the tables of the outbox: the argument `include_name` of `context.configure`."""
    return kind != "table" or name not in table_names(prefix)
