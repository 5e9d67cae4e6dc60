"""The admin: rows of the outbox, parked rows with their decisions, and results.

Always true: rows of the outbox and results are only read here; a decision about a parked row is one of `parked_rows`, and
needs the permission to change or to delete parked rows; a page reads no more of a large table than `_ROWS_MAX` rows, unless
a user searches it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from django.contrib import admin, messages
from django.core.paginator import Paginator
from django.db import router, transaction
from django.utils import timezone
from django.utils.functional import cached_property

from foqs_client.django.backend import FoqsBackend
from foqs_client.django.models import OutboxEntry, ParkedEntry, TaskRecord
from foqs_client.django.outbox_statements import DjangoStatements
from foqs_client.django.task_classes import TaskResultStatus, task_backends
from foqs_client.django.task_records import record_drop
from foqs_client.errors import FoqsError
from foqs_client.outbox import parked_rows

_SHOWN_MAX: Final = 200
_ROWS_MAX: Final = 10_000
"""The most rows that a list counts and has pages for."""


class _BoundedPaginator(Paginator):
    """Counts up to `_ROWS_MAX` rows: a count of all reads the whole table."""

    @cached_property
    def count(self) -> int:
        return int(self.object_list[:_ROWS_MAX].count())


class _SettingsFilter(admin.SimpleListFilter):
    """Filters by a column whose values the settings name: to read them would read the whole table."""

    def queryset(self, request: Any, queryset: Any) -> Any:
        return queryset.filter(**{self.parameter_name: self.value()}) if self.value() else queryset


class _StatusFilter(_SettingsFilter):
    title = parameter_name = "status"

    def lookups(self, request: Any, model_admin: Any) -> list[tuple[str, str]]:
        return [(each.value, each.label) for each in TaskResultStatus]


class _QueueFilter(_SettingsFilter):
    title = parameter_name = "queue"

    def lookups(self, request: Any, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, name) for name in sorted({name for backend in _backends() for name in backend.queues})]


class _BackendFilter(_SettingsFilter):
    title = parameter_name = "backend"

    def lookups(self, request: Any, model_admin: Any) -> list[tuple[str, str]]:
        return [(backend.alias, backend.alias) for backend in _backends()]


class _ReadOnlyAdmin(admin.ModelAdmin):
    """Shows rows, and changes nothing."""

    list_per_page = 50
    show_full_result_count = False
    paginator = _BoundedPaginator

    def get_queryset(self, request: Any) -> Any:
        return super().get_queryset(request).using(_database(self.model))

    def has_add_permission(self, request: Any) -> bool:
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:
        return False


class _RowAdmin(_ReadOnlyAdmin):
    """Shows rows of an outbox."""

    search_fields = ("event_id__exact", "topic__exact")
    fields: tuple[str, ...] = (
        "id",
        "event_id",
        "topic",
        "row_group",
        "priority",
        "created",
        "deliver_after",
        "content",
    )
    readonly_fields = ("created", "deliver_after", "content")

    @admin.display(description="created", ordering="id")
    def created(self, row: Any) -> datetime:
        """Return when the user's transaction inserted the row, by the database's clock."""
        return _moment(row.created_ms)

    @admin.display(description="run after")
    def deliver_after(self, row: Any) -> datetime | None:
        """Return the moment before which the item is not delivered."""
        return None if row.deliver_after_ms is None else _moment(row.deliver_after_ms)

    @admin.display(description="payload")
    def content(self, row: Any) -> str:
        """Return the payload as text."""
        return _text(row.payload)

    @admin.display(description="payload")
    def excerpt(self, row: Any) -> str:
        """Return the beginning of the payload."""
        text = _text(row.payload)
        return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"


@admin.register(OutboxEntry)
class OutboxEntryAdmin(_RowAdmin):
    """Rows that the relay has not enqueued yet."""

    list_display = ("id", "topic", "created", "deliver_after", "excerpt")


@admin.register(ParkedEntry)
class ParkedEntryAdmin(_RowAdmin):
    """Rows that an operator decides."""

    list_display = ("id", "topic", "created", "reason", "may_be_queued", "verdict", "excerpt")
    fields = (*_RowAdmin.fields, "reason", "may_be_queued", "verdict")
    actions = ("resend", "resend_although_queued", "drop")

    def has_resend_permission(self, request: Any) -> bool:
        """Return whether a user may resend rows."""
        return bool(request.user.has_perm("foqs.change_parkedentry"))

    def has_drop_permission(self, request: Any) -> bool:
        """Return whether a user may drop rows."""
        return bool(request.user.has_perm("foqs.delete_parkedentry"))

    @admin.action(description="Resend", permissions=["resend"])
    def resend(self, request: Any, rows: Any) -> None:
        """Let the relay send rows again that are in no queue."""

        def resend(tables: DjangoStatements, row: Any) -> None:
            parked_rows.resend(tables, row.pk)

        self._decide(request, rows, "resent", resend)

    @admin.action(description="Resend, although a second item may follow", permissions=["resend"])
    def resend_although_queued(self, request: Any, rows: Any) -> None:
        """Let the relay send rows again that may be in the queue."""

        def resend(tables: DjangoStatements, row: Any) -> None:
            parked_rows.resend(tables, row.pk, may_double=True)

        self._decide(request, rows, "resent", resend)

    @admin.action(description="Drop: never enqueue them", permissions=["drop"])
    def drop(self, request: Any, rows: Any) -> None:
        """Delete rows for good. The results of tasks that are in no queue fail."""
        database = _database(ParkedEntry)
        has_results = any(each.supports_get_result for each in _backends() if each.foqs.database == database)

        def drop(tables: DjangoStatements, row: Any) -> None:
            with transaction.atomic(using=database):
                parked_rows.drop(tables, row.pk)
                if has_results and not row.may_be_queued:
                    record_drop(database, row.event_id)

        self._decide(request, rows, "dropped", drop)

    def _decide(self, request: Any, rows: Any, what: str, decide: Callable[[DjangoStatements, Any], None]) -> None:
        tables, count = DjangoStatements(_database(ParkedEntry)), 0
        for row in rows:
            try:
                decide(tables, row)
            except FoqsError as error:
                self.message_user(request, error.message, messages.ERROR)
            else:
                count += 1
        if count:
            self.message_user(request, f"{count} of the rows: {what}.", messages.SUCCESS)


@admin.register(TaskRecord)
class TaskRecordAdmin(_ReadOnlyAdmin):
    """Results of tasks."""

    list_display = ("id", "path", "queue", "shown_status", "enqueued_at", "started_at", "finished_at")
    list_filter = (_StatusFilter, _QueueFilter, _BackendFilter)
    search_fields = ("id__exact", "path__exact")
    fields = (
        *("id", "backend", "path", "queue", "call", "shown_status", "enqueued_at", "started_at", "last_attempted_at"),
        *("finished_at", "worker_ids", "return_value", "errors"),
    )
    readonly_fields = ("shown_status",)

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:
        """Return whether a user may delete results: they grow for ever otherwise."""
        return bool(admin.ModelAdmin.has_delete_permission(self, request, obj))

    @admin.display(description="status", ordering="status")
    def shown_status(self, record: Any) -> str:
        """Return the status. One whose worker is silent is not shown as running."""
        return str(record.status_at(timezone.now()).value)


def _backends() -> list[FoqsBackend]:
    return [each for each in task_backends.all() if isinstance(each, FoqsBackend)]


def _database(model: Any) -> str:
    """Return the database that is shown: the router's, unless no backend has it."""
    routed, used = router.db_for_write(model), sorted({each.foqs.database for each in _backends()})
    return routed if routed in used or not used else used[0]


def _moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1_000, UTC)


def _text(payload: Any) -> str:
    """Return a payload as text. SQLite keeps what another program wrote as text."""
    return payload if isinstance(payload, str) else bytes(payload).decode(errors="backslashreplace")
