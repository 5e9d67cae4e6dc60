"""Runs a change of all items that match a filter as a bulk job, and shows its progress.

Always true: the matching items are counted and the person is asked before the job starts;
the job goes on when the command ends, however that happens. Knows nothing of single
commands.
"""

from __future__ import annotations

import asyncio
import functools
import secrets
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from foqs.cli.host_session import CommandFailed, HostSession
from foqs.cli.output import Column, Row, confirm, pattern_notes, print_message, show_rows
from foqs_contract.bulk_actions import COUNT, BulkActionRow
from foqs_contract.plurals import counted
from foqs_contract.printable_text import printable

if TYPE_CHECKING:
    from foqs_client import BulkJob, Change, Client, ItemFilter

POLL_S_MIN: Final = 0.05
POLL_S_MAX: Final = 0.5
ATTEMPTS_MAX: Final = 5
"""The most calls for one look at the job."""
PAUSE_S: Final = 0.5
RATE_MAX: Final = 1_000_000

_COLUMNS: Final[list[Column]] = [
    ("JOB", lambda row: row["job"] or "-"),
    ("MATCHED", lambda row: str(row["matched"])),
    ("CHANGED", lambda row: str(row["changed"])),
    ("REFUSED", lambda row: str(row["refused"])),
]


@dataclass(slots=True, frozen=True)
class BulkOptions:
    """The options of a change by filter.

    Attributes:
        yes: whether the job starts without a question.
        rate: at most this many items are changed a second; None: no limit.
        background: the command does not wait for the end of the job.
    """

    yes: bool = False
    rate: int | None = None
    background: bool = False


@dataclass(slots=True, frozen=True)
class BulkWork:
    """The action of a bulk job, with its arguments.

    Attributes:
        action: what is done to the items; its name is the verb of the question.
    """

    action: BulkActionRow
    change: Change | None = None
    move_to: str | None = None


def bulk_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of a change by filter, as `how`."""

    @click.option("--yes", is_flag=True, help="Do not ask.")
    @click.option(
        "--rate",
        type=click.IntRange(1, RATE_MAX),
        default=None,
        help="By filter: the maximum number of items to change in a second.",
    )
    @click.option(
        "--background", is_flag=True, help="By filter: start the job and end; foqs jobs shows how far it has come."
    )
    @functools.wraps(command)
    def with_options(*args: Any, yes: bool, rate: int | None, background: bool, **options: Any) -> None:
        command(*args, how=BulkOptions(yes, rate, background), **options)

    return with_options


def apply_to_matching(session: HostSession, only: ItemFilter, work: BulkWork, how: BulkOptions) -> None:
    """Count the matching items, ask, change them by a bulk job, and show the result. Raises CommandFailed."""
    matched = session.run(lambda client: _count(client, only, work))
    if matched and not how.yes:
        confirm(f"{work.action.name.capitalize()} {counted(matched, 'item')}?")
    if not matched:
        _show_result(session, None, 0, 0)
        for note in pattern_notes([only.topic] if only.topic else []):
            print_message(note)
        return
    key = secrets.token_hex(16)

    async def start(client: Client) -> BulkJob:
        return await client.start_bulk_job(
            work.action.name,
            only,
            work.change,
            move_to=work.move_to,
            rate_per_s=how.rate,
            expected=matched,
            start_key=key,
        )

    job = session.run(start)
    if how.background:
        _show_result(session, job, matched, 0)
        print_message(f"The job {job.id} runs; see it with: foqs jobs show {job.id}")
        return
    _follow_to_end(session, job, only, work, matched)


def _follow_to_end(session: HostSession, job: BulkJob, only: ItemFilter, work: BulkWork, matched: int) -> None:
    """Wait until the job is settled, and show its counts. Raises CommandFailed if it did not change all items."""
    progress = _JobProgress(job, matched)
    try:
        session.run(lambda client: _follow(client, progress))
    except (CommandFailed, KeyboardInterrupt) as error:
        progress.finish()
        _show_result(session, progress.job, matched, None)
        why = f"{error} " if isinstance(error, CommandFailed) else "Interrupted. "
        code = error.code if isinstance(error, CommandFailed) else 1
        raise CommandFailed(
            f"{why}The job goes on; see it with: foqs jobs show {job.id}, and end it with: foqs jobs cancel {job.id}",
            code,
        ) from None
    progress.finish()
    left: int | None = None
    is_left_counted = progress.job.state == "done" and work.action.removes_matches
    try:
        if is_left_counted:
            left = _count_left(session, only)
    finally:
        _show_result(session, progress.job, matched, left)
    _fail_unless_done(progress.job)
    if left:
        print_message(f"{counted(left, 'item matches', 'items match')} now: new, or changed since. Repeat the command.")
    elif is_left_counted and left is None:
        print_message("The job is done. The items that match now could not be counted.")


def _count_left(session: HostSession, only: ItemFilter) -> int | None:
    """Count the items that still match, by one call; None if that fails. The job is done in either case."""

    async def count(client: Client) -> int:
        return (await client.count(only)).items

    try:
        return session.run(count)
    except CommandFailed:
        return None


async def _follow(client: Client, progress: _JobProgress) -> None:
    """Look at the job until nothing is changed any more."""
    pause_s = POLL_S_MIN
    while not progress.job.is_settled:
        await asyncio.sleep(pause_s)
        pause_s = min(POLL_S_MAX, 2 * pause_s)
        progress.update(await _read_job(client, progress.job.id))


async def _read_job(client: Client, job_id: str) -> BulkJob:
    """Return the job; a failure that may pass is tried again. Raises FoqsError."""
    from foqs_client import FoqsError

    for attempt in range(1, ATTEMPTS_MAX + 1):
        try:
            return await client.bulk_job(job_id)
        except FoqsError as error:
            if attempt == ATTEMPTS_MAX or not error.may_succeed_later:
                raise
            await asyncio.sleep((error.retry_after_ms or 0) / 1_000 or PAUSE_S)
    raise AssertionError("the last attempt returns or raises")


async def _count(client: Client, only: ItemFilter, work: BulkWork) -> int:
    """Count the matching items, by a job if a call does not suffice. Raises FoqsError, CommandFailed."""
    from foqs_client import DeadlineExceeded

    try:
        return (await client.count(only)).items
    except DeadlineExceeded:
        job = await client.start_bulk_job(
            COUNT.name, only, work.change, move_to=work.move_to, counts_for=work.action.name
        )
    print_message(f"The count takes longer than a call; it goes on as the job {job.id}.")
    progress = _JobProgress(job, None)
    try:
        await _follow(client, progress)
    finally:
        progress.finish()
    _fail_unless_done(progress.job)
    return progress.job.seen


def _fail_unless_done(job: BulkJob) -> None:
    """Raise CommandFailed if the job did not end, or items were refused."""
    if job.state == "interrupted":
        raise CommandFailed(f"The job is interrupted; continue it with: foqs jobs resume {job.id}")
    if job.state != "done":
        why = f": {job.problem}" if job.problem else ""
        raise CommandFailed(f"The job is {job.state}{why}")
    if job.failed:
        raise CommandFailed(
            f"{counted(job.failed, 'item was', 'items were')} refused, the first because: {job.refusal or 'unknown'}"
        )


def _show_result(session: HostSession, job: BulkJob | None, matched: int, left: int | None) -> None:
    """Print the result. `left` is None if the items that still match were not counted."""
    row: Row = {
        "job": None if job is None else job.id,
        "matched": matched,
        "changed": 0 if job is None else job.changed,
        "refused": 0 if job is None else job.failed,
        "left": left,
    }
    show_rows([row], _COLUMNS, session.output_format)


class _JobProgress:
    """The job as it was seen last, shown on a terminal."""

    def __init__(self, job: BulkJob, matched: int | None) -> None:
        self.job = job
        self._matched = matched
        self._is_shown = False

    def update(self, job: BulkJob) -> None:
        self.job = job
        if sys.stderr.isatty():
            waits = printable(f"; it waits: {job.problem}") if job.problem else ""
            done = (
                counted(job.seen, "item matches", "items match")
                if self._matched is None
                else f"{job.changed} of {counted(self._matched, 'item')}"
            )
            click.echo(f"\r\033[K{done}{waits}", nl=False, err=True)
            self._is_shown = True

    def finish(self) -> None:
        if self._is_shown:
            print_message("")
