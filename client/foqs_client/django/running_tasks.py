"""The tasks that run in this process, whose records say that it lives.

Holds `RunningTasks`. Always true: while a task runs and holds its lease, its record ends in the future; a database that
cannot be written harms no task.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from foqs_client.consumer import Job
from foqs_client.django.task_databases import close_stale_connections
from foqs_client.django.task_records import BegunRun

BEAT_S: Final = 5.0
"""How often records are extended. A task that takes less is not written for it."""
LEASE_S_MIN: Final = 4 * BEAT_S
"""A record says RUNNING for so long at least, although nothing extends it."""

log: Final = logging.getLogger("foqs.worker")


class RunningTasks:
    """The runs whose records a thread extends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[Job, tuple[BegunRun, float]] = {}
        self._has_thread = False

    @contextmanager
    def kept(self, job: Job, run: BegunRun, lease_s: float) -> Iterator[None]:
        """Extend the record of a run until the end of the block."""
        with self._lock:
            self._runs[job] = run, lease_s
            if not self._has_thread:
                self._has_thread = True
                threading.Thread(target=self._beat_for_ever, name="foqs-running-tasks", daemon=True).start()
        try:
            yield
        finally:
            with self._lock:
                del self._runs[job]

    def beat(self) -> None:
        """Extend the records of all runs whose leases are not lost. Raises the error of the last one that failed."""
        with self._lock:
            runs = list(self._runs.items())
        failure: Exception | None = None
        for job, (run, lease_s) in runs:
            if not job.lost:
                try:
                    run.extend(lease_s)
                except Exception as error:  # the others may be in another database
                    failure = error
        if failure is not None:
            raise failure

    def _beat_for_ever(self) -> None:
        pause, is_failing = threading.Event(), False
        while not pause.wait(BEAT_S):
            close_stale_connections()
            try:
                self.beat()
            except Exception as error:
                (log.debug if is_failing else log.warning)(
                    "the records of running tasks are not extended now: %s", error
                )
                is_failing = True
            else:
                is_failing = False
            close_stale_connections()


RUNNING_TASKS: Final = RunningTasks()
"""Those of this process."""
