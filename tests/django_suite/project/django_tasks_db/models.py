"""The results of the suite: our records, by the names that the suite has for them."""

import json
from datetime import datetime

from django.db import models
from django.utils import timezone

from foqs_client.django.models import TaskRecord
from foqs_client.django.task_records import read_result

_JSON = ("return_value", "worker_ids")


class _Results(models.QuerySet):
    def ready(self):
        waiting = self.filter(status="READY")
        return waiting.filter(pk__in=[record.pk for record in waiting if _is_due(record)])

    def successful(self):
        return self.filter(status="SUCCESSFUL")

    def failed(self):
        return self.filter(status="FAILED")

    def update(self, **values):
        """Update columns as the suite does, which has no text for JSON and no column for the last attempt."""
        found = {name: json.dumps(value) if name in _JSON else value for name, value in values.items()}
        if "started_at" in found:
            found["last_attempted_at"] = found["started_at"]
        return super().update(**found)


class DBTaskResult(TaskRecord):
    """A record."""

    objects = models.Manager.from_queryset(_Results)()

    class Meta:
        proxy = True
        app_label = "foqs"

    @property
    def task_result(self):
        """The result, as the backend reads it."""
        return read_result("default", self.pk)

    @property
    def task(self):
        """The task, as the backend reads it."""
        return self.task_result.task


def get_date_max():
    """A name that the suite imports."""
    raise NotImplementedError


def _is_due(record):
    run_after = json.loads(record.call)["run_after"]
    return run_after is None or datetime.fromisoformat(run_after) <= timezone.now()
