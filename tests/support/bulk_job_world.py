"""Hosts that work on bulk jobs in one process, under virtual time: their record, and items that note each change.

Holds `SharedDocuments`, `NotedItems`, `Member` and `BulkJobWorld`. Always true: an item is
changed at most once in a walk, as in a queue; each further walk changes it again, so a
walk that starts twice is noticed. Knows nothing of the tests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from foqs.core.items.item import State
from foqs.core.items.row_filter import RowFilter
from foqs.queue.bulk_change import BulkChange
from foqs.queue.bulk_jobs.bulk_job import (
    BulkJobCommand,
    BulkJobOwner,
    BulkJobRecord,
    BulkJobRecords,
    BulkJobSpec,
)
from foqs.queue.bulk_jobs.bulk_job_document import parse_jobs
from foqs.queue.bulk_jobs.bulk_job_host import BulkJobHost
from foqs.queue.bulk_jobs.bulk_job_store import BulkJobStore, Documents
from foqs.queue.bulk_jobs.bulk_job_transitions import control, start
from foqs.queue.bulk_jobs.bulk_job_worker import BulkJobObserver, BulkJobPages, BulkJobTools
from foqs.queue.port import PageResult
from foqs_contract import bulk_actions
from foqs_contract.backoff import Backoff
from foqs_contract.errors import FoqsError, InvalidArgument, UnknownOutcome
from shardmgr.registry.port import (
    RegistryConflict,
    RegistryOutcomeUnknown,
    RegistryUnreachable,
    VersionedDocument,
)
from tests.support.virtual_time import Process, SimulatedLoop

NETWORK_S = 0.001
PAGE_S = 0.1
REDRIVE = BulkChange(bulk_actions.REDRIVE)
DEAD = RowFilter("t", (State.DEAD,))


def spec_of(**changes: Any) -> BulkJobSpec:
    """Return what a job shall do: redrive the dead items of a topic, unless `changes` say otherwise."""
    values: dict[str, Any] = {"namespace": "default", "item_filter": DEAD, "change": REDRIVE, "start_key": "key"}
    return BulkJobSpec(**{**values, **changes})


def job_of(number: int = 1, **changes: Any) -> BulkJobRecord:
    """Return a new job; `changes` are fields of the job or of its spec."""
    own = {name: changes.pop(name) for name in list(changes) if name in BulkJobRecord.__dataclass_fields__}
    spec = spec_of(**{"start_key": f"key {number}", **changes})
    values: dict[str, Any] = {
        "id": f"{number:016x}",
        "spec": spec,
        "tier": "default",
        "incarnation": 0,
        "started_at_ms": number,
        "changed_at_ms": number,
    }
    return BulkJobRecord(**{**values, **own})


class SharedDocuments(Documents):
    """The documents of a cluster. A killed user blocks no other one.

    Attributes:
        is_down: nothing is answered.
        lost_replies: this number of the next replacements happen without an answer.
    """

    def __init__(self) -> None:
        self.is_down = False
        self.lost_replies = 0
        self.reads = self.writes = 0
        self._stored: dict[str, VersionedDocument] = {}
        self._listeners: list[Callable[[], None]] = []

    def subscribe(self, on_change: Callable[[], None]) -> None:
        self._listeners.append(on_change)

    async def read(self, name: str) -> VersionedDocument | None:
        await self._travel()
        self.reads += 1
        return self._stored.get(name)

    async def replace(self, name: str, data: bytes, version: int | None) -> int:
        await self._travel()
        stored = self._stored.get(name)
        if (None if stored is None else stored.version) != version:
            raise RegistryConflict("another version is stored")
        self._stored[name] = VersionedDocument(data, (version or 0) + 1)
        self.writes += 1
        for listener in self._listeners:
            listener()
        is_lost, self.lost_replies = self.lost_replies > 0, max(0, self.lost_replies - 1)
        await asyncio.sleep(NETWORK_S)
        if is_lost:
            raise RegistryOutcomeUnknown("the answer is lost")
        return (version or 0) + 1

    def jobs(self) -> BulkJobRecords:
        """Return the recorded jobs now."""
        stored = self._stored.get("jobs")
        return BulkJobRecords() if stored is None else parse_jobs(stored.data)

    async def _travel(self) -> None:
        await asyncio.sleep(NETWORK_S)
        if self.is_down:
            raise RegistryUnreachable("nothing answers")


class NotedItems(BulkJobPages):
    """Items that a job changes, and what happened to them.

    Attributes:
        walks: for each item the walks that changed it.
        pages: (time, cursor, limit) of each page.
        errors: raised by the next pages, before anything is changed.
        lost_pages: this number of the next pages are changed, and their result is lost.
        refused: the items that refuse the change.
    """

    def __init__(self, count: int) -> None:
        self.walks: list[list[int]] = [[] for _ in range(count)]
        self.pages: list[tuple[float, str | None, int]] = []
        self.errors: list[FoqsError] = []
        self.lost_pages = 0
        self.refused: Collection[int] = ()
        self.page_s = PAGE_S
        self._walk_count = 0

    async def make_page(self, spec: BulkJobSpec, cursor: str | None, limit: int) -> PageResult:
        self.pages.append((asyncio.get_running_loop().time(), cursor, limit))
        await asyncio.sleep(self.page_s / 2)
        if self.errors:
            raise self.errors.pop(0)
        if cursor is None:
            self._walk_count += 1
            return PageResult(0, 0, None, f"{self._walk_count}:0" if self.walks else None)
        walk, place = map(int, cursor.split(":"))
        following = place + limit
        next_cursor = None if following >= len(self.walks) else f"{walk}:{following}"
        if spec.is_count:
            await asyncio.sleep(self.page_s / 2)
            return PageResult(0, 0, None, next_cursor, len(self.walks[place:following]))
        found = [item for item in range(place, min(place + limit, len(self.walks))) if walk not in self.walks[item]]
        changed = [item for item in found if item not in self.refused]
        for item in changed:
            self.walks[item].append(walk)
        is_lost, self.lost_pages = self.lost_pages > 0, max(0, self.lost_pages - 1)
        await asyncio.sleep(self.page_s / 2)
        if is_lost:
            raise UnknownOutcome("the result is lost")
        refused = len(found) - len(changed)
        return PageResult(
            changed=len(changed),
            refused=refused,
            refusal=InvalidArgument("it is leased") if refused else None,
            next_cursor=next_cursor,
            matched=len(found),
        )

    @property
    def is_each_changed_once(self) -> bool:
        return all(len(walks) == 1 for item, walks in enumerate(self.walks) if item not in self.refused)


class _NoObserver(BulkJobObserver):
    def bulk_items(self, action: str, changed: int, failed: int) -> None:
        """Count nothing."""


@dataclass(slots=True)
class Member:
    """A host: its process, its own view of the cluster, and the tasks that work on jobs."""

    owner: BulkJobOwner
    process: Process
    host: BulkJobHost
    task: asyncio.Task[None]


@dataclass
class BulkJobWorld:
    """A cluster of hosts with one record.

    Attributes:
        members: the nonces of the hosts that the coordination service reports.
        view_of: by nonce, another view than `members`; None: the host knows nothing.
    """

    items: NotedItems
    documents: SharedDocuments = field(default_factory=SharedDocuments)
    members: list[str] = field(default_factory=list)
    view_of: dict[str, Collection[str] | None] = field(default_factory=dict)
    incarnation: int | None = 0
    backoff: Backoff = Backoff(0.1, 2.0)  # noqa: RUF009 - it is frozen
    store: BulkJobStore = field(init=False)

    def __post_init__(self) -> None:
        self.store = BulkJobStore(self.documents)

    def add(self, name: str, *, tier: str = "default") -> Member:
        """Start a host."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        process = loop.process(name)
        owner = BulkJobOwner(name, f"{name}-nonce")
        self.members.append(owner.nonce)

        def make() -> BulkJobHost:
            tools = self.tools(BulkJobStore(self.documents))
            return BulkJobHost(tools, owner, tier, lambda: self.view_of.get(owner.nonce, self.members))

        host = process.run(make)
        return Member(owner, process, host, process.spawn(host.run(), name=name))

    def tools(self, store: BulkJobStore) -> BulkJobTools:
        """Return the tools of a host with its own access to the record."""
        return BulkJobTools(
            store,
            self.items,
            lambda _: self.incarnation,
            lambda: int(asyncio.get_running_loop().time() * 1_000),
            self.backoff,
            _NoObserver(),
        )

    def kill(self, member: Member) -> None:
        """Kill a host; the coordination service notices it."""
        member.process.kill()
        self.members.remove(member.owner.nonce)

    async def start(self, number: int = 1, **changes: Any) -> BulkJobRecord:
        """Record a new job."""
        return await self.store.update(lambda jobs: start(jobs, job_of(number, **changes)))

    async def control(self, command: BulkJobCommand, number: int = 1) -> BulkJobRecord:
        """Record a command."""
        now_ms = int(asyncio.get_running_loop().time() * 1_000)
        return await self.store.update(lambda jobs: control(jobs, "default", f"{number:016x}", command, now_ms))

    def job(self, number: int = 1) -> BulkJobRecord:
        """Return a job as it is recorded now."""
        return self.documents.jobs().by_id[f"{number:016x}"]

    async def until(self, condition: Callable[[], bool], within_s: float = 120.0, every_s: float = 0.05) -> None:
        """Wait in virtual time until a condition holds. Fails if it does not in time."""
        end_s = asyncio.get_running_loop().time() + within_s
        while not condition():
            assert asyncio.get_running_loop().time() < end_s, "the condition does not come true"
            await asyncio.sleep(every_s)

    async def ended(self, number: int = 1) -> BulkJobRecord:
        """Wait until a job has ended and its last page is counted."""
        await self.until(lambda: not self.job(number).state.is_live and self.job(number).owner is None)
        return self.job(number)
