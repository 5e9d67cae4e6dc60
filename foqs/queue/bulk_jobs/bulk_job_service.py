"""Serves the calls on bulk jobs from the record; see `BulkJobs`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from random import Random
from typing import Any, Final, TypeVar

from foqs.catalog.namespaces import Namespaces
from foqs.queue.bulk_jobs import bulk_job_transitions
from foqs.queue.bulk_jobs.bulk_job import BulkJobCommand, BulkJobRecord, BulkJobSpec
from foqs.queue.bulk_jobs.bulk_job_document import SPEC_BYTES_MAX, spec_bytes
from foqs.queue.bulk_jobs.bulk_job_store import BulkJobStore
from foqs.queue.bulk_jobs.bulk_jobs import BulkJobs
from foqs_contract.errors import (
    DeadlineExceeded,
    InvalidArgument,
    LimitExceeded,
    Unavailable,
    UnknownOutcome,
)
from shardmgr.registry.port import RegistryError, RegistryFailed

_T = TypeVar("_T")

_RETRY_MS: Final = 1_000


class BulkJobService(BulkJobs):
    """Serves the calls about bulk jobs on one host.

    Args:
        now_ms: milliseconds since 1970-01-01 UTC.
        rng: draws the ids of jobs.
    """

    def __init__(self, store: BulkJobStore, namespaces: Namespaces, now_ms: Callable[[], int], rng: Random) -> None:
        self._store = store
        self._namespaces = namespaces
        self._now_ms = now_ms
        self._rng = rng
        self._running: set[asyncio.Task[Any]] = set()

    async def start(self, spec: BulkJobSpec, deadline: float) -> BulkJobRecord:
        name = spec.namespace
        self._namespaces.settings_of(name)
        self._namespaces.check_tier(name)
        spec = _checked(spec)
        now_ms = self._now_ms()
        job = BulkJobRecord(
            id=f"{self._rng.getrandbits(64):016x}",
            spec=spec,
            tier=self._namespaces.tier,
            incarnation=self._namespaces.document.namespaces[name].incarnation,
            started_at_ms=now_ms,
            changed_at_ms=now_ms,
        )
        return await self._write(self._store.update(lambda jobs: bulk_job_transitions.start(jobs, job)), deadline)

    async def list_jobs(self, namespace: str, deadline: float) -> list[BulkJobRecord]:
        self._namespaces.settings_of(namespace)
        try:
            async with asyncio.timeout_at(deadline):
                return (await self._store.load()).of_namespace(namespace)
        except TimeoutError:
            raise DeadlineExceeded("the time ran out before the bulk jobs were read; try again") from None
        except RegistryFailed as error:
            raise Unavailable(str(error), retry_after_ms=_RETRY_MS) from None

    async def control(self, namespace: str, job_id: str, command: BulkJobCommand, deadline: float) -> BulkJobRecord:
        self._namespaces.settings_of(namespace)
        now_ms = self._now_ms()
        changing = self._store.update(
            lambda jobs: bulk_job_transitions.control(jobs, namespace, job_id, command, now_ms)
        )
        return await self._write(changing, deadline)

    async def _write(self, changing: Coroutine[Any, Any, _T], deadline: float) -> _T:
        """Change the recorded jobs, and return the result. The change is completed even if its caller leaves.

        Raises:
            UnknownOutcome: the change may be recorded, or may still be.
            Unavailable: nothing was recorded.
        """
        task = asyncio.ensure_future(changing)
        self._running.add(task)
        task.add_done_callback(self._on_written)
        await asyncio.wait((task,), timeout=max(0.0, deadline - asyncio.get_running_loop().time()))
        if not task.done():
            raise UnknownOutcome("the change was not recorded by the deadline, and may still be; call again")
        try:
            return task.result()
        except RegistryFailed as error:
            raise Unavailable(str(error), retry_after_ms=_RETRY_MS) from None
        except RegistryError as error:
            raise UnknownOutcome(f"{error}; the change may be recorded; call again") from None

    def _on_written(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # marks it as retrieved: its caller may have left


def _checked(spec: BulkJobSpec) -> BulkJobSpec:
    """Return the spec to record, with a narrowed filter. Raises `InvalidArgument`, `LimitExceeded`."""
    change = spec.counts_for or spec.change
    if spec.counts_for is not None and (not spec.is_count or not change.action.changes_items):
        raise InvalidArgument(
            "only the action COUNT takes this, and it must be an action that changes items; leave it out, or correct it",
            field="counts_for",
        )
    if spec.rate_per_s is not None and spec.rate_per_s < 1:
        raise InvalidArgument(f"{spec.rate_per_s} is too low; give at least 1, or leave it out", field="rate_per_s")
    if not spec.start_key:
        raise InvalidArgument("this is empty; give a random text", field="start_key")
    spec = replace(spec, item_filter=change.narrow(spec.item_filter))
    length = spec_bytes(spec)
    if length > SPEC_BYTES_MAX:
        raise LimitExceeded(
            f"filter and change have {length} bytes as JSON; at most {SPEC_BYTES_MAX} are kept for a job: "
            "name fewer topics, or start several jobs",
            field="filter",
        )
    return spec
