"""A bulk job: its work, its progress, and the host that works on it.

Holds the frozen values and the table of a job's states. Always true: a job that has
ended stays as it is, but for the counts of its last page; `run` increases by one each
time a host takes the job. Pure; knows nothing of how pages are made or where jobs are
stored.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from foqs.core.items.row_filter import RowFilter
from foqs.queue.bulk_change import BulkChange

JOB_ID_CHARS: Final = 16
_JOB_ID: Final = re.compile(r"[0-9a-f]{16}")


def is_job_id(text: str) -> bool:
    """Return whether a text is the id of a job: 16 hexadecimal digits."""
    return _JOB_ID.fullmatch(text) is not None


class BulkJobState(enum.Enum):
    """The state of a job."""

    RUNNING = "running"
    """A host works on it, or will."""
    INTERRUPTED = "interrupted"
    """It stands still until it is resumed or cancelled."""
    DONE = "done"
    FAILED = "failed"
    """It ended with an error that no repetition mends."""
    CANCELLED = "cancelled"

    @property
    def is_live(self) -> bool:
        """Whether the job has not ended."""
        return self is BulkJobState.RUNNING or self is BulkJobState.INTERRUPTED


class BulkJobCommand(enum.Enum):
    """The commands of a person to a job. Each may be repeated."""

    INTERRUPT = "interrupt"
    RESUME = "resume"
    CANCEL = "cancel"


NEXT_STATE: Final[Mapping[tuple[BulkJobState, BulkJobCommand], BulkJobState]] = {
    (BulkJobState.RUNNING, BulkJobCommand.INTERRUPT): BulkJobState.INTERRUPTED,
    (BulkJobState.RUNNING, BulkJobCommand.RESUME): BulkJobState.RUNNING,
    (BulkJobState.RUNNING, BulkJobCommand.CANCEL): BulkJobState.CANCELLED,
    (BulkJobState.INTERRUPTED, BulkJobCommand.INTERRUPT): BulkJobState.INTERRUPTED,
    (BulkJobState.INTERRUPTED, BulkJobCommand.RESUME): BulkJobState.RUNNING,
    (BulkJobState.INTERRUPTED, BulkJobCommand.CANCEL): BulkJobState.CANCELLED,
    (BulkJobState.CANCELLED, BulkJobCommand.CANCEL): BulkJobState.CANCELLED,
}
"""The state after a command. A pair that is missing is refused."""


REASON_CHARS_MAX: Final = 200
"""Longer refusals and problems are cut, so that all jobs fit into one document."""


def shorten(reason: str | None) -> str | None:
    """Return a reason, cut to `REASON_CHARS_MAX`; None if there is none."""
    return reason if reason is None or len(reason) <= REASON_CHARS_MAX else f"{reason[: REASON_CHARS_MAX - 3]}..."


@dataclass(slots=True, frozen=True)
class BulkJobSpec:
    """The work of a job, as its caller asked for it. It never changes.

    Attributes:
        item_filter: the items. Its ages count from the start of its filter walk; its `at_ms` is not used.
        rate_per_s: the maximum number of items to change in a second; None: as fast as the shards allow.
        expected: the number of matching items that the caller counted before; for people. None: not counted.
        started_by: the principal; None if the host does not authenticate.
        start_key: a start with the key of an existing job of the namespace returns that job. The caller draws it.
        is_exclusive: refused while another job of the same action on the same topic is live.
        counts_for: COUNT; the change on which the caller decides by the number. The job only keeps it.
    """

    namespace: str
    item_filter: RowFilter
    change: BulkChange
    start_key: str
    rate_per_s: int | None = None
    expected: int | None = None
    started_by: str | None = None
    is_exclusive: bool = False
    counts_for: BulkChange | None = None

    @property
    def is_count(self) -> bool:
        """Whether the job changes nothing."""
        return not self.change.action.changes_items


@dataclass(slots=True, frozen=True)
class BulkJobOwner:
    """The host that works on a job: its name, and the nonce of its run.

    Attributes:
        unknown: the fields that only a newer version knows. They are kept while the host works on the job.
    """

    name: str
    nonce: str
    unknown: Mapping[str, Any] = field(default_factory=dict, compare=False)


@dataclass(slots=True, frozen=True)
class BulkJobCounts:
    """The numbers of items in the finished pages of a job.

    Attributes:
        seen: the items that matched when their page was read.
        changed: the items that the job has changed.
        failed: the items that refused the change, such as a leased item's move.
        at_least: the numbers may be too low, because the result of a page was lost. `changed` is never too high.
        unknown: the fields that only a newer version knows. They are kept.
    """

    seen: int = 0
    changed: int = 0
    failed: int = 0
    at_least: bool = False
    unknown: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class BulkJobRecord:
    """A job as it is recorded. Times are milliseconds since 1970-01-01 UTC, by the clock of the host that wrote them.

    Attributes:
        id: 16 hexadecimal digits.
        tier: the hosts that may work on it.
        incarnation: the incarnation of the namespace; another one means that it was deleted and created again.
        cursor: the pages before it are done; None: the filter walk has not started.
        refusal: why the first of the failed items refused the change.
        problem: FAILED: why; RUNNING: what the job waits for, if it cannot go on now.
        owner: None: no host works on it. A job that has ended has an owner until its last page is counted.
        run: increases by one each time a host takes the job.
        ended_at_ms: None while it is live.
        unknown: the fields that only a newer version knows. They are kept.
    """

    id: str
    spec: BulkJobSpec
    tier: str
    incarnation: int
    started_at_ms: int
    changed_at_ms: int
    state: BulkJobState = BulkJobState.RUNNING
    cursor: str | None = None
    counts: BulkJobCounts = BulkJobCounts()
    refusal: str | None = None
    problem: str | None = None
    owner: BulkJobOwner | None = None
    run: int = 0
    ended_at_ms: int | None = None
    unknown: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class BulkJobRecords:
    """All jobs of a cluster by id, the oldest first."""

    by_id: Mapping[str, BulkJobRecord] = field(default_factory=dict)
    unread: Mapping[str, Any] = field(default_factory=dict)
    """Records that only a newer version can read, as it wrote them."""
    unknown: Mapping[str, Any] = field(default_factory=dict)
    """The fields that only a newer version knows. They are kept."""

    def of_namespace(self, namespace: str) -> list[BulkJobRecord]:
        """Return the jobs of a namespace, the newest first."""
        return [job for job in reversed(list(self.by_id.values())) if job.spec.namespace == namespace]
