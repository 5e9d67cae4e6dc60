"""An index of results by the time of their enqueue, by which the admin shows them."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    """Adds the index."""

    dependencies: ClassVar = [("foqs", "0001_outbox")]
    operations: ClassVar = [migrations.AlterField("TaskRecord", "enqueued_at", models.DateTimeField(db_index=True))]
