"""The page of bulk jobs: choose items and a change, see what matches, go, and follow the job."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web

from foqs.console.page_request import PageRequest
from foqs.console.topic_pages import STATES
from foqs.runtime.durations import parse_duration
from foqs_client import BulkJob, Change, DeadlineExceeded, InvalidArgument, ItemFilter, ItemView
from foqs_contract.bulk_actions import CHANGES

PREVIEW_ITEMS: Final = 20
PREVIEW_S_MAX: Final = 0.3
"""The time to search items for a preview. A filter may match few of many."""
COUNT_WAIT_S: Final = 0.3
"""A page waits this long for the number of items, and then says that they are still being counted."""
COUNT_S_MAX: Final = 8
"""The longest time that a page counts. A longer count is a bulk job."""
COUNT_AGE_S_MAX: Final = 3_600
"""The age from which a job's count starts no change any more: other items may match by now."""

_FIELDS: Final = (
    "topic",
    "priority_min",
    "priority_max",
    "older_than",
    "newer_than",
    "what",
    "move_to",
    "priority",
    "delay",
    "metadata",
    "rate",
)
"""The fields of the form, beside the states."""


async def bulk(page_request: PageRequest) -> web.StreamResponse:
    """Show the jobs of a namespace and a form for a new one; or one job; or do what a form says."""
    if page_request.request.method == "POST":
        return await _act(page_request)
    job_id = page_request.text("job")
    if job_id:
        job = await page_request.client.bulk_job(job_id)
        return page_request.page(
            "bulk_job.html",
            f"Bulk job {job_id}",
            job=job,
            counted_change=await _counted_change(page_request, job),
            counted_action=CHANGES.get(job.counts_for or ""),
            conditions=conditions(job),
            changes=_changes(job),
        )
    jobs = await page_request.client.bulk_jobs()
    return page_request.page(
        "bulk.html",
        "Bulk jobs",
        jobs=jobs,
        actions=CHANGES,
        states=STATES,
        chosen=_chosen_states(page_request),
        given={name: page_request.values.get(name, "") for name in _FIELDS},
    )


async def _act(page_request: PageRequest) -> web.StreamResponse:
    action = page_request.text("action")
    if action == "preview":
        return await _preview(page_request)
    if action == "count":
        return await _start_count(page_request)
    if action == "start":
        return await _start(page_request)
    if action == "start_counted":
        return await _start_counted(page_request)
    if action == "count_again":
        return await _count_again(page_request)
    if action == "cancel" and page_request.text("confirmed") != "1":
        job_id = page_request.require("job")
        return page_request.page(
            "confirm.html",
            f"Cancel the bulk job {job_id}?",
            path="/bulk",
            action="cancel",
            fields={"job": job_id},
            text="This ends the job for good. What it has changed stays changed.",
            button="Cancel the job",
            back={"job": job_id},
        )
    if action in ("interrupt", "resume", "cancel"):
        job = await page_request.client.control_bulk_job(page_request.require("job"), action)
        page_request.see("/bulk", job=job.id)
    raise InvalidArgument(
        f"{action!r} is not an action of bulk jobs; use preview, count, start, start_counted, count_again, interrupt, "
        "resume or cancel",
        field="action",
    )


async def _preview(page_request: PageRequest) -> web.StreamResponse:
    """Count the items that match, and show the first of them."""
    only, what = _filter(page_request), _chosen_action(page_request)
    change, move_to = _change(page_request, what)
    key = page_request.text("key") or secrets.token_hex(16)
    found, is_complete = await _first_items(page_request, only)
    counted = await _count(page_request, only, key)
    return page_request.page(
        "bulk_preview.html",
        f"{what.capitalize()} {'these' if counted is None or counted.items is None else f'{counted.items:,}'} items?",
        counted=counted,
        found=found,
        is_complete=is_complete,
        warning=CHANGES[what].warning,
        is_everything=only == ItemFilter(states=only.states),
        fields=_form_fields(page_request),
        key=key,
        change=change,
        move_to=move_to,
        rate=page_request.number("rate"),
    )


async def _start(page_request: PageRequest) -> web.StreamResponse:
    what = _chosen_action(page_request)
    change, move_to = _change(page_request, what)
    expected = page_request.number("expected")
    if expected is None:
        raise InvalidArgument("this is missing; count the items first", field="expected")
    job = await page_request.client.start_bulk_job(
        what,
        _filter(page_request),
        change,
        move_to=move_to,
        rate_per_s=page_request.number("rate"),
        expected=expected,
        # The form has the key, so sending it twice starts one job.
        start_key=page_request.require("key"),
    )
    page_request.see("/bulk", job=job.id)


async def _start_count(page_request: PageRequest) -> web.StreamResponse:
    """Count by a job, which remembers for which change."""
    what = _chosen_action(page_request)
    change, move_to = _change(page_request, what)
    job = await page_request.client.start_bulk_job(
        "count",
        _filter(page_request),
        change,
        move_to=move_to,
        rate_per_s=page_request.number("rate"),
        start_key=f"count-{page_request.require('key')}",
        counts_for=what,
    )
    page_request.see("/bulk", job=job.id)


async def _start_counted(page_request: PageRequest) -> web.StreamResponse:
    """Start the job of the change for which a job has counted, once. Raises InvalidArgument and what the call raises."""
    count = await page_request.client.bulk_job(page_request.require("job"))
    change = await _counted_change(page_request, count)
    if change is None:
        raise InvalidArgument("this job has not counted items for a change; count them first", field="job")
    if change.started is not None:
        page_request.see("/bulk", job=change.started.id)
    if change.is_late:
        raise InvalidArgument("this count is older than an hour; count again", field="job")
    job = await page_request.client.start_bulk_job(
        change.action,
        count.only,
        count.change,
        move_to=count.move_to,
        rate_per_s=count.rate_per_s,
        expected=count.seen,
        # One count, one change: two tabs start one job.
        start_key=_counted_key(count),
    )
    page_request.see("/bulk", job=job.id)


async def _count_again(page_request: PageRequest) -> web.StreamResponse:
    """Count by another job for the same change. Raises InvalidArgument and what the call raises."""
    count = await page_request.client.bulk_job(page_request.require("job"))
    if count.counts_for is None:
        raise InvalidArgument("this job does not count items for a change; count them first", field="job")
    job = await page_request.client.start_bulk_job(
        "count",
        count.only,
        count.change,
        move_to=count.move_to,
        rate_per_s=count.rate_per_s,
        start_key=f"again-{count.id}",
        counts_for=count.counts_for,
    )
    page_request.see("/bulk", job=job.id)


@dataclass(slots=True, frozen=True)
class CountedChange:
    """The change for which a job has counted.

    Attributes:
        action: the action as in `Client.start_bulk_job`.
        started: the job that makes the change; None: it is not started.
        is_late: the count is too old to start the change.
    """

    action: str
    started: BulkJob | None
    is_late: bool


async def _counted_change(page_request: PageRequest, count: BulkJob) -> CountedChange | None:
    """Return the change for which a job has counted; None if it is no such job, or has not ended."""
    if count.counts_for is None or count.state != "done":
        return None
    started = [job for job in await page_request.client.bulk_jobs() if job.start_key == _counted_key(count)]
    age_s = page_request.shared.now_s() - (count.ended_at_ms or 0) / 1_000
    return CountedChange(count.counts_for, started[0] if started else None, age_s > COUNT_AGE_S_MAX)


def _counted_key(count: BulkJob) -> str:
    """Return the start key of the change for which a job has counted."""
    return f"counted-{count.id}"


@dataclass(slots=True, frozen=True)
class MatchCount:
    """The number of items that match.

    Attributes:
        items: None if they cannot be counted in `COUNT_S_MAX`.
    """

    items: int | None


async def _count(page_request: PageRequest, only: ItemFilter, key: str) -> MatchCount | None:
    """Count the items that match. Return None while the count goes on; the form that looks again has the same `key`."""

    async def read() -> MatchCount:
        with page_request.use_client() as client:
            try:
                return MatchCount((await client.count(only, timeout_ms=1_000 * COUNT_S_MAX)).items)
            except DeadlineExceeded:
                return MatchCount(None)

    place = (page_request.permissions.authenticated, page_request.namespace, only, key)
    found: MatchCount | None = await page_request.shared.counts.get(place, read, COUNT_WAIT_S)
    return found


async def _first_items(page_request: PageRequest, only: ItemFilter) -> tuple[list[ItemView], bool]:
    """Return the first items that match, and whether the search was not stopped."""
    found: list[ItemView] = []
    try:
        async with asyncio.timeout(PREVIEW_S_MAX):
            for shard in (await page_request.client.routing()).shards:
                cursor: str | None = None
                while len(found) < PREVIEW_ITEMS:
                    page = await page_request.client.list_items(shard.shard, only, PREVIEW_ITEMS - len(found), cursor)
                    found += page.items
                    cursor = page.next_cursor
                    if cursor is None:
                        break
    except TimeoutError:
        return found, False
    return found, True


# ---------------------------------------------------------------------- the form


def _filter(page_request: PageRequest) -> ItemFilter:
    """Return the filter of the form. Raises InvalidArgument."""
    states = ["dead"] if CHANGES[_chosen_action(page_request)].of_dead_items else _chosen_states(page_request)
    for state in states:
        if state not in STATES:
            raise InvalidArgument(f"{state!r} is not a state; use one of {', '.join(STATES)}", field="state")
    return ItemFilter(
        page_request.values.get("topic") or None,
        tuple(states) or None,
        page_request.number("priority_min"),
        page_request.number("priority_max"),
        _duration(page_request, "older_than"),
        _duration(page_request, "newer_than"),
    )


def _chosen_action(page_request: PageRequest) -> str:
    what = page_request.text("what")
    if what not in CHANGES:
        raise InvalidArgument(f"{what!r} is not an action; use one of {', '.join(CHANGES)}", field="what")
    return what


def _change(page_request: PageRequest, what: str) -> tuple[Change | None, str | None]:
    """Return what the action takes: new values, or a topic, or neither. Raises InvalidArgument."""
    if CHANGES[what].takes == "move_to":
        return None, page_request.require("move_to")
    if CHANGES[what].takes != "change":
        return None, None
    metadata = page_request.values.get("metadata", "")
    change = Change(
        page_request.number("priority"), _duration(page_request, "delay"), metadata=metadata.encode() or None
    )
    if change == Change():
        raise InvalidArgument("this changes nothing; give a priority, a delay or metadata", field="priority")
    return change, None


def _duration(page_request: PageRequest, field: str) -> int | None:
    text = page_request.text(field)
    if not text:
        return None
    try:
        return parse_duration(text)
    except ValueError as error:
        raise InvalidArgument(str(error), field=field) from None


def _chosen_states(page_request: PageRequest) -> list[str]:
    return [str(value) for value in page_request.values.getall("state", [])]


def _form_fields(page_request: PageRequest) -> list[tuple[str, str]]:
    """Return the fields of the form that are filled in, for the next form."""
    given = [(name, page_request.values.get(name, "")) for name in _FIELDS]
    return [(name, value) for name, value in given if value] + [
        ("state", state) for state in _chosen_states(page_request)
    ]


# ----------------------------------------------------------------------- one job


def conditions(job: BulkJob) -> dict[str, Any]:
    """Return the conditions of a job's filter, by the words of the page."""
    only = job.only
    found = {
        "topic": only.topic,
        "topics": None if only.topics is None else ", ".join(only.topics),
        "group": only.group,
        "states": None if only.states is None else ", ".join(only.states),
        "priority at least": only.priority_min,
        "priority at most": only.priority_max,
        "older than (ms)": only.age_min_ms,
        "newer than (ms)": only.age_max_ms,
    }
    return {name: value for name, value in found.items() if value is not None}


def _changes(job: BulkJob) -> dict[str, Any]:
    change = job.change or Change()
    found = {
        "to the topic": job.move_to,
        "priority": change.priority,
        "delay (ms)": change.delay_ms,
        "deliver after (ms since 1970)": change.deliver_after_ms,
        "metadata": None if change.metadata is None else change.metadata.decode(errors="replace"),
    }
    return {name: value for name, value in found.items() if value is not None}


BULK_PAGES: Final[Mapping[str, Callable[[PageRequest], Awaitable[web.StreamResponse]]]] = {"/bulk": bulk}
