"""The tables of an outbox, and the table of results."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations, models

from foqs_client.outbox.outbox_sql import create_tables, dialect_named, drop_tables


def _create(_apps: Any, schema_editor: Any) -> None:
    for statement in create_tables(dialect_named(schema_editor.connection.vendor)):
        schema_editor.execute(statement)


def _drop(_apps: Any, schema_editor: Any) -> None:
    for statement in drop_tables():
        schema_editor.execute(statement)


def _row_fields() -> list[tuple[str, Any]]:
    return [
        ("id", models.BigAutoField(primary_key=True, serialize=False)),
        ("event_id", models.CharField(max_length=32, verbose_name="result id")),
        ("topic", models.TextField()),
        ("row_group", models.TextField(null=True)),
        ("payload", models.BinaryField()),
        ("priority", models.BigIntegerField()),
        ("deliver_after_ms", models.BigIntegerField(null=True)),
        ("attempts_max", models.BigIntegerField(null=True)),
        ("created_ms", models.BigIntegerField()),
    ]


class Migration(migrations.Migration):
    """Version 1 of the tables of an outbox; the unmanaged models are their state."""

    initial = True
    dependencies: ClassVar[list[Any]] = []
    operations: ClassVar = [
        migrations.RunPython(_create, _drop, atomic=False),  # MySQL has no transactions of tables
        migrations.CreateModel(
            name="OutboxEntry",
            fields=_row_fields(),
            options={"verbose_name": "outbox row", "db_table": "foqs_outbox", "ordering": ["id"], "managed": False},
        ),
        migrations.CreateModel(
            name="ParkedEntry",
            fields=[
                *_row_fields(),
                ("reason", models.TextField()),
                ("may_be_queued", models.BigIntegerField()),
                ("verdict", models.TextField(null=True)),
            ],
            options={"verbose_name": "parked row", "db_table": "foqs_parked", "ordering": ["id"], "managed": False},
        ),
        migrations.CreateModel(
            name="TaskRecord",
            fields=[
                ("id", models.CharField(max_length=32, primary_key=True, serialize=False)),
                ("backend", models.CharField(max_length=255)),
                ("path", models.CharField(max_length=255, verbose_name="task")),
                ("queue", models.CharField(max_length=255)),
                ("call", models.TextField()),
                ("status", models.CharField(max_length=16)),
                ("enqueued_at", models.DateTimeField()),
                ("started_at", models.DateTimeField(null=True)),
                ("last_attempted_at", models.DateTimeField(null=True)),
                ("finished_at", models.DateTimeField(db_index=True, null=True)),
                ("lease_ends_at", models.DateTimeField(null=True)),
                ("is_last_attempt", models.BooleanField(default=False)),
                ("worker_ids", models.TextField(default="[]")),
                ("errors", models.TextField(default="[]")),
                ("return_value", models.TextField(default="null")),
            ],
            options={
                "verbose_name": "task result",
                "db_table": "foqs_task_result",
                "ordering": ["-enqueued_at"],
            },
        ),
    ]
