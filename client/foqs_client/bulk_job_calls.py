"""The client's calls about bulk jobs, which change all items that match a filter.

Holds the calls, which `Client` inherits, with their arguments and results. Always true:
every call is safe to repeat; a start whose outcome is unknown is sent once more with the
same key. A job goes on when the client, or the host that works on it, ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from foqs_client import conversion
from foqs_client.errors import FoqsError, InvalidArgument, NotFound
from foqs_client.routed_calls import RoutedCalls
from foqs_client.types import Change, ItemFilter
from foqs_contract.bulk_actions import BULK_ACTIONS, CHANGES, BulkActionRow, action_of
from foqs_contract.idl import ttypes
from foqs_contract.thrift_method import ThriftMethod

LIVE_STATES: Final = frozenset(("running", "interrupted"))

_STATE_NAMES: Final = {state: state.name.lower() for state in ttypes.BulkJobState}
_COMMANDS: Final = {command.name.lower(): command for command in ttypes.BulkJobCommand}


@dataclass(slots=True, frozen=True)
class BulkJob:
    """A bulk job. Times are milliseconds since 1970-01-01 UTC by a host's clock.

    Attributes:
        id: 16 hexadecimal digits.
        action: "cancel", "update", "redrive", "move" or "count".
        only: the filter that its items match.
        change: only with "update": what it changes in each item.
        move_to: only with "move": the topic of the new items.
        counts_for: only with "count": the action that it was started for; `change` and `move_to` belong to it.
        start_key: the key of the call that started it; None from an older host.
        rate_per_s: the maximum number of items to change in a second; None: as fast as the shards allow.
        expected: the number of matching items that the starter counted.
        state: "running", "interrupted", "done", "failed" or "cancelled".
        seen: the items that matched when their page was read; the result of "count". Counts are about a second old.
        changed: the items that were changed.
        failed: the items that match but cannot be changed in this way.
        at_least: the counts may be too low, because the result of a page was lost.
        refusal: why the first of the failed items was refused.
        problem: why the job failed, or what it waits for.
        started_by: the principal that started it; None if the host does not authenticate.
        owner: the name of the host that works on it, or still counts its last page.
    """

    id: str
    action: str
    only: ItemFilter
    change: Change | None
    move_to: str | None
    rate_per_s: int | None
    expected: int | None
    state: str
    seen: int
    changed: int
    failed: int
    at_least: bool
    refusal: str | None
    problem: str | None
    started_by: str | None
    owner: str | None
    started_at_ms: int | None
    changed_at_ms: int | None
    ended_at_ms: int | None
    counts_for: str | None = None
    start_key: str | None = None

    @property
    def is_live(self) -> bool:
        """Whether it is running or interrupted."""
        return self.state in LIVE_STATES

    @property
    def is_settled(self) -> bool:
        """Whether nothing is changed any more, unless it is resumed: it does not run, and its last page is counted."""
        return self.state != "running" and self.owner is None


class BulkJobCalls(RoutedCalls):
    """The calls about bulk jobs of the client's namespace."""

    async def start_bulk_job(
        self,
        action: str,
        only: ItemFilter,
        change: Change | None = None,
        *,
        move_to: str | None = None,
        rate_per_s: int | None = None,
        expected: int | None = None,
        start_key: str | None = None,
        exclusive: bool = False,
        counts_for: str | None = None,
        timeout_ms: int | None = None,
    ) -> BulkJob:
        """Start a job that changes all items that match, or counts them, and return it.

        Args:
            action: "cancel", "update", "redrive", "move" or "count". A count changes nothing, and may take as long as it needs.
            only: the filter of the items. Filter and change have at most about 4,000 bytes.
            change: only with "update": what to change in each item.
            move_to: only with "move"; the filter then names the topic of the items.
            rate_per_s: the maximum number of items to change in a second.
            expected: how many items match, if you counted them; shown with the job.
            start_key: a second start with the same key returns the first one's job. None: the client draws one.
            exclusive: whether to refuse the job while one with the same action and topics is running or interrupted.
            counts_for: only with "count": the action to which `change` and `move_to` belong. The job keeps them for you.

        Raises:
            LimitExceeded: too many jobs are running or interrupted, or the filter is too long.
            UnknownOutcome: the job may be started. Call again with the same `start_key`, or list the jobs.
        """
        row = _row(action, BULK_ACTIONS, "action")
        values = (None if change is None else conversion.change(change), move_to)
        meant = None
        if counts_for is not None:
            if row.changes_items:
                raise InvalidArgument("only the action count takes this; leave it out", field="counts_for")
            # A host that does not know a count finds no action then, and refuses the call.
            meant = ttypes.BulkChange(**_row(counts_for, CHANGES, "counts_for").fields(*values))
            values = (None, None)
        request = ttypes.StartBulkJobRequest(
            namespace_name=self.namespace,
            filter=conversion.item_filter(only),
            rate_per_s=rate_per_s,
            expected=expected,
            start_key=f"{self._rng.getrandbits(128):032x}" if start_key is None else start_key,
            exclusive=exclusive or None,
            counts_for=meant,
            **row.fields(*values),
        )
        try:
            reply = await self._call(_START, request, timeout_ms)
        except FoqsError as error:
            if not error.hides_write:
                raise
            reply = await self._call(_START, request, timeout_ms)
        return _bulk_job(reply)

    async def bulk_jobs(self, *, timeout_ms: int | None = None) -> list[BulkJob]:
        """List the jobs that are running or interrupted, and those that ended lately. The newest is first."""
        reply = await self._call(_LIST, ttypes.ListBulkJobsRequest(self.namespace), timeout_ms)
        return [_bulk_job(raw) for raw in reply.jobs or ()]

    async def bulk_job(self, job_id: str, *, timeout_ms: int | None = None) -> BulkJob:
        """Return one job.

        Raises:
            NotFound: there is no such job; one that ended long ago is forgotten.
        """
        for job in await self.bulk_jobs(timeout_ms=timeout_ms):
            if job.id == job_id:
                return job
        raise NotFound(
            "the namespace has no job with this id; jobs that ended long ago are forgotten, and bulk_jobs lists the others",
            field="id",
        )

    async def control_bulk_job(self, job_id: str, command: str, *, timeout_ms: int | None = None) -> BulkJob:
        """Interrupt, resume or cancel a job, and return it.

        Items may be changed for about a second after an interruption or a cancellation, until the job has no owner.

        Raises:
            NotFound: there is no such job.
            InvalidArgument: it has ended.
        """
        number = _COMMANDS.get(command)
        if number is None:
            raise InvalidArgument(f"{command!r} is not a command; use one of {', '.join(_COMMANDS)}", field="command")
        request = ttypes.ControlBulkJobRequest(self.namespace, job_id, number)
        return _bulk_job(await self._call(_CONTROL, request, timeout_ms))


def _bulk_job(raw: Any) -> BulkJob:
    what = raw if raw.counts_for is None else raw.counts_for
    action, meant = _action_name(raw), _action_name(what)
    return BulkJob(
        id=raw.id or "",
        action=action,
        only=ItemFilter() if raw.filter is None else _item_filter(raw.filter),
        change=None if what.change is None else _change(what.change),
        move_to=what.move_to,
        rate_per_s=raw.rate_per_s,
        expected=raw.expected,
        state=_STATE_NAMES.get(raw.state, str(raw.state)),
        seen=raw.seen or 0,
        changed=raw.changed or 0,
        failed=raw.failed or 0,
        at_least=bool(raw.at_least),
        refusal=raw.refusal,
        problem=raw.problem,
        started_by=raw.started_by,
        owner=raw.owner,
        started_at_ms=raw.started_at_ms,
        changed_at_ms=raw.changed_at_ms,
        ended_at_ms=raw.ended_at_ms,
        counts_for=None if raw.counts_for is None else meant,
        start_key=raw.start_key,
    )


def _row(name: str, known: Mapping[str, BulkActionRow], field: str) -> BulkActionRow:
    """Return the row of an action. Raises InvalidArgument."""
    row = known.get(name)
    if row is None:
        raise InvalidArgument(f"{name!r} is not an action; use one of {', '.join(known)}", field=field)
    return row


def _action_name(struct: Any) -> str:
    """Return the name of the action that a struct chooses; its number if only a newer version knows it."""
    action = action_of(struct)
    return str(struct.action) if action is None else action.name


def _item_filter(raw: Any) -> ItemFilter:
    names = conversion.STATE_NAMES
    return ItemFilter(
        raw.topic,
        None if raw.states is None else tuple(names.get(state, str(state)) for state in raw.states),
        raw.priority_min,
        raw.priority_max,
        raw.age_min_ms,
        raw.age_max_ms,
        None if raw.topics is None else tuple(raw.topics),
        raw.group,
    )


def _change(raw: Any) -> Change:
    return Change(raw.priority, raw.delay_ms, raw.deliver_after_ms, raw.metadata)


_START: Final = ThriftMethod("startBulkJob")
_LIST: Final = ThriftMethod("listBulkJobs")
_CONTROL: Final = ThriftMethod("controlBulkJob")
