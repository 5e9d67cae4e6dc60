"""Every change of a document of the registry keeps the fields that only a newer version knows."""

from __future__ import annotations

import ast
import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from foqs.catalog import changes
from foqs.catalog.document import Document, NamespaceRecord, Permission, PolicyRecord, QueueEntry, parse, render
from foqs.catalog.queue_changes import change_queue
from foqs.console import session_secret
from foqs.queue.bulk_jobs import bulk_job_transitions
from foqs.queue.bulk_jobs.bulk_job import BulkJobCommand, BulkJobCounts, BulkJobOwner, BulkJobRecord, BulkJobRecords
from foqs.queue.bulk_jobs.bulk_job_document import parse_jobs, render_jobs
from foqs.queue.bulk_jobs.bulk_job_transitions import BulkJobProgress
from foqs.testing.virtual_loop import VirtualClock
from shardmgr import layout_changes
from shardmgr.documents import LAYOUT, PLAN, parse_plan
from shardmgr.local_coordinator import FileEpochBook
from shardmgr.model import Plan, ShardSpec
from shardmgr.plan import next_plan
from tests.compat import documents_check
from tests.support.bulk_job_world import SharedDocuments, job_of
from tests.support.local_ensemble import LocalEnsemble, LocalRegistry
from tests.support.virtual_time import run_virtual

ROOT: Final = Path(__file__).parents[3]
NEWER: Final = {"since": [1, None]}
"""The value of the field `newer`, which a newer version has written into each object."""

CATALOG_OBJECTS: Final = (
    "",
    "namespaces.*",
    "namespaces.*.settings",
    "namespaces.*.queues.*",
    "namespaces.*.policies.*",
)
LAYOUT_OBJECTS: Final = ("", "shards.*")
PLAN_OBJECTS: Final = ("", "assignments.*")
JOBS_OBJECTS: Final = ("", "jobs.*", "jobs.*.counts", "jobs.*.owner")


def objects_of(document: Any, path: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the objects at a path, in which `*` stands for each name, and the name of each."""
    found = [("", document)]
    for step in path.split(".") if path else []:
        found = [
            (f"{at}.{name}", each[name])
            for at, each in found
            for name in (sorted(each) if step == "*" else [step])
            if name in each and isinstance(each[name], dict)
        ]
    return found


def by_newer_version(text: str | bytes, paths: tuple[str, ...]) -> bytes:
    """Return a document with a field of a newer version in each of its objects."""
    document = json.loads(text)
    for path in paths:
        for _, each in objects_of(document, path):
            each["newer"] = NEWER
    return json.dumps(document).encode()


def objects_without(text: str | bytes, paths: tuple[str, ...]) -> list[str]:
    """Return the objects of a document that lost the field."""
    document = json.loads(text)
    return [at for path in paths for at, each in objects_of(document, path) if each.get("newer") != NEWER]


def catalog_of_newer_version() -> Document:
    known = documents_check.CATALOG
    spare = replace(known.namespaces["orders"], deleting=None, policies={"mail": PolicyRecord(1)})
    return parse(
        by_newer_version(render(replace(known, namespaces={**known.namespaces, "spare": spare})), CATALOG_OBJECTS)
    )


CATALOG_CHANGES: Final[dict[str, Callable[[Document], Document]]] = {
    "update": lambda d: changes.update(d, "spare", None, {"weight": 9}),
    "delete": lambda d: changes.delete(d, "spare"),
    "start_deletion": lambda d: changes.start_deletion(d, "spare"),
    "cancel_deletion": lambda d: changes.cancel_deletion(d, "orders"),
    "record_empty_shards": lambda d: changes.record_empty_shards(d, "orders", {1}, {1, 2, 3}),
    "last empty shard": lambda d: changes.record_empty_shards(d, "orders", {1}, {1, 2}),
    "in_one_version": lambda d: changes.in_one_version(d, changes.delete(changes.delete(d, "spare"), "orders")),
    "grant": lambda d: changes.grant(d, "spare", "new", frozenset(Permission)),
    "pause": lambda d: changes.pause(d, "spare", "new", paused=True),
    "set_policy": lambda d: changes.set_policy(d, "spare", "mail", PolicyRecord(3)),
    "record_slots": lambda d: changes.record_slots(d, "new", {7: frozenset()}, [7]),
    "restore": lambda d: changes.restore(
        d,
        Document(
            1,
            {"orders": NamespaceRecord(), "spare": NamespaceRecord(queues={"mail": QueueEntry({"DelaySeconds": "7"})})},
        ),
    ),
    "restore of another catalog": lambda d: changes.restore(d, Document(1, {"spare": NamespaceRecord()}, identity=99)),
    "change_queue": lambda d: change_queue(
        d, "spare", "mail", lambda entry: replace(entry or QueueEntry(), changed_at_s=3), 100
    ),
}


@pytest.mark.parametrize("change", CATALOG_CHANGES.values(), ids=CATALOG_CHANGES)
def test_change_of_the_catalog_keeps_fields_of_a_newer_version(change: Callable[[Document], Document]) -> None:
    before = catalog_of_newer_version()
    after = change(before)
    assert after.version == before.version + 1
    assert objects_without(render(after), CATALOG_OBJECTS) == []
    assert after.identity


def test_import_without_an_identity_keeps_that_of_the_catalog() -> None:
    before = catalog_of_newer_version()
    assert changes.restore(before, Document(1, {"fresh": NamespaceRecord()})).identity == before.identity


def test_test_notices_a_lost_field() -> None:
    before = catalog_of_newer_version()
    lossy = Document(before.version + 1, before.namespaces, before.slots)
    assert objects_without(render(lossy), CATALOG_OBJECTS) == [""]


JOBS: Final = BulkJobRecords(
    {job.id: job for job in (job_of(1, owner=BulkJobOwner("host", "nonce"), run=1), job_of(2))}
)

JOB_CHANGES: Final[dict[str, Callable[[BulkJobRecords], BulkJobRecords]]] = {
    "start": lambda jobs: bulk_job_transitions.start(jobs, job_of(3, namespace="other"))[0],
    "control": lambda jobs: bulk_job_transitions.control(jobs, "default", job_of(1).id, BulkJobCommand.INTERRUPT, 5)[0],
    "take_jobs": lambda jobs: bulk_job_transitions.take_jobs(jobs, BulkJobOwner("other", "other"), "default", (), 4, 5)[
        0
    ],
    "report": lambda jobs: bulk_job_transitions.report(
        jobs, job_of(1).id, BulkJobProgress(1, "c", replace(of(jobs, 1).counts, seen=7)), 5
    )[0],
    "release": lambda jobs: bulk_job_transitions.release(jobs, "nonce", 5),
}


def of(jobs: BulkJobRecords, number: int) -> BulkJobRecord:
    return jobs.by_id[job_of(number).id]


@pytest.mark.parametrize("change", JOB_CHANGES.values(), ids=JOB_CHANGES)
def test_change_of_the_jobs_keeps_fields_of_a_newer_version(change: Callable[[BulkJobRecords], BulkJobRecords]) -> None:
    before = parse_jobs(by_newer_version(render_jobs(JOBS), JOBS_OBJECTS))
    assert before.by_id.keys() == JOBS.by_id.keys()
    after = change(before)
    assert after is not before
    fresh = {f".jobs.{job_of(3).id}", f".jobs.{job_of(3).id}.counts", f".jobs.{job_of(2).id}.owner"}
    assert set(objects_without(render_jobs(after), JOBS_OBJECTS)) <= fresh


def test_host_is_the_owner_of_its_job_whatever_a_newer_version_wrote_beside() -> None:
    jobs = parse_jobs(by_newer_version(render_jobs(JOBS), JOBS_OBJECTS))
    assert of(jobs, 1).owner == BulkJobOwner("host", "nonce")
    assert of(jobs, 1).counts != BulkJobCounts()


LAYOUT_CHANGES: Final[dict[str, Callable[[LocalRegistry], Any]]] = {
    "add_shard": lambda registry: layout_changes.add_shard(registry, ShardSpec(7, "main")),
    "remove_shard": lambda registry: layout_changes.remove_shard(registry, 2, force=True),
    "drain_shard": lambda registry: layout_changes.drain_shard(registry, 2),
    "move_shard": lambda registry: layout_changes.move_shard(registry, 2, None),
    "drain_host": lambda registry: layout_changes.drain_host(registry, "gamma", force=True),
    "undrain_host": lambda registry: layout_changes.undrain_host(registry, "alpha"),
    "raise_epochs": lambda registry: layout_changes.raise_epochs(registry, [1, 2], 100),
}


@pytest.mark.parametrize("change", LAYOUT_CHANGES.values(), ids=LAYOUT_CHANGES)
def test_change_of_the_layout_keeps_fields_of_a_newer_version(change: Callable[[LocalRegistry], Any]) -> None:
    async def story() -> None:
        registry = LocalEnsemble(None, VirtualClock(asyncio.get_running_loop()).monotonic_ms).registry(6_000)
        await registry.open()
        stored = {name: documents_check.KINDS[name] for name in (LAYOUT, PLAN)}
        paths = {LAYOUT: LAYOUT_OBJECTS, PLAN: PLAN_OBJECTS}
        before = {name: by_newer_version(kind.render(kind.value), paths[name]) for name, kind in stored.items()}
        for name, text in before.items():
            await registry.replace(name, text, None)
        await change(registry)
        after = {name: (await registry.read(name)).data for name in stored}  # type: ignore[union-attr]
        assert after != before
        added = [".shards.7"] if ".shards.7" in str(objects_of(json.loads(after[LAYOUT]), "shards.*")) else []
        assert objects_without(after[LAYOUT], LAYOUT_OBJECTS) == added
        assert objects_without(after[PLAN], PLAN_OBJECTS) == []

    run_virtual(story)


def test_next_plan_keeps_fields_of_a_newer_version() -> None:
    kind = documents_check.KINDS[PLAN]
    plan: Plan = parse_plan(by_newer_version(kind.render(kind.value), PLAN_OBJECTS))
    member = replace(documents_check.MEMBER, leaving=False, held_shards={}, taken_epochs={})
    layout = replace(documents_check.LAYOUT, shards={})
    after = next_plan(layout, replace(plan, epochs={**plan.epochs, 3: 1}), [member], frozenset(), 1)
    assert objects_without(kind.render(after), PLAN_OBJECTS) == []


def test_another_secret_of_the_console_keeps_fields_of_a_newer_version() -> None:
    async def story() -> None:
        documents = SharedDocuments()
        await documents.replace(
            session_secret.DOCUMENT_NAME, by_newer_version(session_secret._render(bytes(32)), ("",)), None
        )
        await session_secret.replace_secret(documents)
        stored = await documents.read(session_secret.DOCUMENT_NAME)
        assert stored is not None
        assert objects_without(stored.data, ("",)) == []
        assert json.loads(stored.data)["secret"] != bytes(32).hex()
        await documents.replace(session_secret.DOCUMENT_NAME, b"damaged", stored.version)
        await session_secret.replace_secret(documents)
        host = session_secret.SessionSecret(documents)
        await host.refresh()
        assert host.value is not None

    run_virtual(story, until_s=100)


def test_epochs_of_a_host_alone_keep_fields_of_a_newer_version(tmp_path: Path) -> None:
    path = tmp_path / "coordinator.json"
    path.write_text(json.dumps({"epochs": {"1": 5}, "newer": NEWER}))
    book = FileEpochBook(path)
    book.save({**book.load(), 2: 1})
    assert objects_without(path.read_text(), ("",)) == []
    assert FileEpochBook(path).load() == {1: 5, 2: 1}


@pytest.mark.once
def test_documents_are_built_from_their_fields_only_where_they_are_parsed_or_created() -> None:
    """Everywhere else a change replaces fields of the stored one, and so keeps the others."""
    allowed = {
        "foqs/catalog/document.py",
        "foqs/queue/bulk_jobs/bulk_job_document.py",
        "shardmgr/documents.py",
        "shardmgr/layout_changes.py",  # the layout of a new cluster
    }
    found = set()
    for path in sorted([*ROOT.glob("foqs/**/*.py"), *ROOT.glob("shardmgr/**/*.py")]):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and (node.args or node.keywords):
                name = getattr(node.func, "id", None) or getattr(node.func, "attr", None)
                if name in {"Document", "Layout", "Plan", "BulkJobRecords"}:
                    found.add(str(path.relative_to(ROOT)))
    assert found == allowed
