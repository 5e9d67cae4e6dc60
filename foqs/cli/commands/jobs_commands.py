"""The commands about bulk jobs: list and show them, interrupt, resume and cancel them."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from foqs.cli.host_session import HostSession, host_call_options
from foqs.cli.output import Column, Row, bytes_fields, print_message, show_fields, show_rows
from foqs.cli.watch import run_watchable, watch_option

if TYPE_CHECKING:
    from foqs_client import BulkJob, Change, Client, ItemFilter

_COLUMNS: Final[list[Column]] = [
    ("JOB", lambda row: row["id"]),
    ("ACTION", lambda row: row["action"]),
    ("STATE", lambda row: row["state"]),
    ("CHANGED", lambda row: f"{'at least ' if row['at_least'] else ''}{row['changed']}"),
    ("OF", lambda row: "-" if row["expected"] is None else str(row["expected"])),
    ("REFUSED", lambda row: str(row["failed"])),
    ("STARTED", lambda row: row["started_at"] or "-"),
    (
        "NOTE",
        lambda row: row["problem"] or row["refusal"] or (f"{row['seen']} match" if row["action"] == "count" else ""),
    ),
]


@click.group()
def jobs() -> None:
    """Bulk jobs: changes of all items that match a filter. They go on when a host dies."""


@jobs.command("list", epilog="\b\nExamples:\n  foqs jobs list\n  foqs jobs list --watch\n  foqs jobs list -o jsonl")
@watch_option
@host_call_options
def jobs_list(session: HostSession, watch_ms: int | None) -> None:
    """List the jobs of the namespace that are running or interrupted, and those that ended lately."""

    async def work(client: Client) -> list[Row]:
        return [job_row(job) for job in await client.bulk_jobs()]

    def draw(session: HostSession, rows: list[Row]) -> None:
        show_rows(rows, _COLUMNS, session.output_format)
        if not rows:
            print_message("The namespace has no bulk job.")

    run_watchable(session, watch_ms, work, draw)


@jobs.command(
    "show", epilog="\b\nExamples:\n  foqs jobs show 5f3c9a0b7d2e4f10\n  foqs jobs show 5f3c9a0b7d2e4f10 --watch"
)
@click.argument("job_id", metavar="ID")
@watch_option
@host_call_options
def jobs_show(session: HostSession, job_id: str, watch_ms: int | None) -> None:
    """Show one job: what it does, how far it has come, and where it runs."""

    async def work(client: Client) -> Row:
        return job_row(await client.bulk_job(job_id))

    run_watchable(session, watch_ms, work, lambda session, row: show_fields(row, session.output_format))


@jobs.command("interrupt", epilog="\b\nExample:\n  foqs jobs interrupt 5f3c9a0b7d2e4f10")
@click.argument("job_id", metavar="ID")
@host_call_options
def jobs_interrupt(session: HostSession, job_id: str) -> None:
    """Interrupt a job. The page in progress ends; `foqs jobs resume` continues."""
    _control(session, job_id, "interrupt")


@jobs.command("resume", epilog="\b\nExample:\n  foqs jobs resume 5f3c9a0b7d2e4f10")
@click.argument("job_id", metavar="ID")
@host_call_options
def jobs_resume(session: HostSession, job_id: str) -> None:
    """Continue an interrupted job where it stopped."""
    _control(session, job_id, "resume")


@jobs.command("cancel", epilog="\b\nExample:\n  foqs jobs cancel 5f3c9a0b7d2e4f10")
@click.argument("job_id", metavar="ID")
@host_call_options
def jobs_cancel(session: HostSession, job_id: str) -> None:
    """End a job for good. What it has changed stays changed."""
    _control(session, job_id, "cancel")


def _control(session: HostSession, job_id: str, command: str) -> None:
    async def work(client: Client) -> Row:
        return job_row(await client.control_bulk_job(job_id, command))

    show_rows([session.run(work)], _COLUMNS, session.output_format)


def job_row(job: BulkJob) -> Row:
    """Return a job as a row, with its times as text."""
    fields = {field.name: getattr(job, field.name) for field in dataclasses.fields(job)}
    for name in ("started", "changed", "ended"):
        fields[f"{name}_at"] = _moment(fields.pop(f"{name}_at_ms"))
    fields["filter"] = _fields_set(fields.pop("only"))
    fields["change"] = None if job.change is None else _fields_set(job.change)
    return fields


def _fields_set(value: ItemFilter | Change) -> dict[str, Any]:
    """Return the fields that are set."""
    given: dict[str, Any] = {}
    for field in dataclasses.fields(value):
        found = getattr(value, field.name)
        if isinstance(found, bytes):
            given.update(bytes_fields(field.name, found))
        elif found is not None:
            given[field.name] = list(found) if isinstance(found, tuple) else found
    return given


def _moment(time_ms: int | None) -> str | None:
    return None if time_ms is None else datetime.fromtimestamp(time_ms / 1_000, UTC).isoformat(timespec="seconds")
