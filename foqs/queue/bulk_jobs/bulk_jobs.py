"""The calls on bulk jobs: start, list, and the commands.

Always true: a job is stored before its start is answered; each call may be repeated.
Any host of the namespace's tier serves them. Knows nothing of how a job makes its
pages, nor of permissions.
"""

from __future__ import annotations

from typing import Protocol

from foqs.queue.bulk_jobs.bulk_job import BulkJobCommand, BulkJobRecord, BulkJobSpec


class BulkJobs(Protocol):
    """The jobs, as `rpc` and `sqs` need them. A deadline is a moment of the event loop's clock, in seconds.

    Every call may raise:
        NamespaceNotFound: there is no such namespace.
        Unavailable: the record of the jobs cannot be read or written now. Nothing was changed.
        DeadlineExceeded: nothing was changed.
    """

    async def start(self, spec: BulkJobSpec, deadline: float) -> BulkJobRecord:
        """Store a new job, which begins at once or as soon as a host has room, and return it.

        Raises:
            InvalidArgument: the change and the filter contradict each other, or the namespace is of another tier.
            LimitExceeded: there are too many live jobs (`field` is `jobs`), the filter is too long (`filter`), or
                `is_exclusive` and another such job is live (`is_exclusive`).
            KeyConflict: the `start_key` belongs to a job that does something else.
            UnknownOutcome: the job may be stored. Repeat the call with the same `start_key`.
        """
        ...

    async def list_jobs(self, namespace: str, deadline: float) -> list[BulkJobRecord]:
        """Return the live jobs of a namespace and those that ended lately, the newest first."""
        ...

    async def control(self, namespace: str, job_id: str, command: BulkJobCommand, deadline: float) -> BulkJobRecord:
        """Interrupt, resume or cancel a job, and return it as it is then.

        A page in progress ends: items may be changed for about a second after the reply. Until then the job has an owner.

        Raises:
            NotFound: the namespace has no such job; it may have ended long ago.
            InvalidArgument: the job has ended otherwise.
            UnknownOutcome: the command may be recorded. Repeat it.
        """
        ...
