"""Handlers that worker processes import: a child finds a handler by module and name.

Holds plain functions of a job. Knows nothing of the tests that use them.
"""

from __future__ import annotations

import os

from foqs_client.consumer import Job, Retry


def work(job: Job) -> None:
    """Does what the metadata says; without any, nothing."""
    if job.metadata == b"unreadable exception":
        raise Retry(metadata=OfOneProcess())  # type: ignore[arg-type]
    if job.metadata == b"unreadable extension":
        job.extend(OfOneProcess())  # type: ignore[arg-type]


class OfOneProcess:
    """Can be pickled, and unpickled only where it was made."""

    def __reduce__(self) -> tuple[object, ...]:
        return _here, (os.getpid(),)


def _here(pid: int) -> OfOneProcess:
    if pid != os.getpid():
        raise ModuleNotFoundError("no module named 'of_another_process'")
    return OfOneProcess()
