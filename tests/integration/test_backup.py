"""Backups made under load with the runbook's commands, restored elsewhere, and served from there by this version."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from foqs.core.items.item import SEQUENCE_BITS, format_id, parse_id
from foqs_client import Client, Delivery, Item, ItemFilter
from tests.support.aio import run
from tests.support.mariadb import MariaDb
from tests.support.older_version import OLDER, installed
from tests.support.poll import soon
from tests.support.processes import HOST, RestartableHost
from tests.support.runbook import blocks, section
from tests.support.tables import Tables, in_mariadb, in_sqlite

pytestmark = pytest.mark.process

TOPIC = "t"


@dataclass(slots=True)
class Book:
    """The record of a load by id: when an item was acknowledged, and when its ack began and was acknowledged."""

    clock: Callable[[], float]
    payloads: dict[str, bytes] = field(default_factory=dict)
    begun: dict[str, float] = field(default_factory=dict)
    """When its enqueue began."""
    enqueued: dict[str, float] = field(default_factory=dict)
    acking: dict[str, float] = field(default_factory=dict)
    acked: dict[str, float] = field(default_factory=dict)


async def produce(client: Client, book: Book, stop: asyncio.Event) -> None:
    number = 0
    while not stop.is_set():
        items = [Item(TOPIC, b"%d" % (number + place), lease_ms=1_000) for place in range(10)]
        number += 10
        begun = book.clock()
        results = await client.enqueue(items)
        for item, result in zip(items, results, strict=True):
            book.payloads[result.require()] = item.payload
            book.begun[result.require()] = begun
            book.enqueued[result.require()] = book.clock()


async def consume(client: Client, book: Book, stop: asyncio.Event) -> None:
    """Ack most deliveries. The others are delivered again when their leases end, or remain."""
    while not stop.is_set():
        got = await client.dequeue({TOPIC: 10}, wait_ms=100)
        mine = [delivery for delivery in got if int(delivery.payload) % 20]
        for delivery in mine:
            book.acking.setdefault(delivery.id, book.clock())
        for delivery, outcome in zip(mine, await client.ack(mine) if mine else [], strict=True):
            outcome.require()
            book.acked[delivery.id] = book.clock()


async def under_load(host: RestartableHost, backup: Callable[[], None]) -> tuple[Book, float, float]:
    """Make a backup under load. Return the record of the load, and when the backup began and ended."""
    loop = asyncio.get_running_loop()
    book, stop = Book(loop.time), asyncio.Event()

    async def acked(items: int) -> None:
        await soon(lambda: len(book.acked) >= items)

    async with Client(host.address) as client, asyncio.TaskGroup() as tasks:
        tasks.create_task(produce(client, book, stop))
        tasks.create_task(consume(client, book, stop))
        await acked(200)
        begun = loop.time()
        await asyncio.to_thread(backup)
        ended = loop.time()
        await acked(len(book.acked) + 200)
        stop.set()
    return book, begun, ended


def check_copy(book: Book, begun: float, ended: float, copy: dict[str, bytes]) -> None:
    """Check that every item acknowledged before the backup is in the copy, or that its ack began before the end."""
    never = float("inf")
    before = [item for item, at in book.enqueued.items() if at < begun]
    assert len(before) > 200
    lost = [item for item in before if item not in copy and book.acking.get(item, never) > ended]
    assert lost == []
    assert [item for item in copy if book.acked.get(item, never) < begun] == []
    assert [item for item in copy if book.begun.get(item, never) > ended] == []
    assert all(book.payloads[item] == payload for item, payload in copy.items())
    assert [item for item in before if item in copy], "the backup must have something to keep"


async def empty(host: RestartableHost, expected: int) -> tuple[list[Delivery], list[str]]:
    """Enqueue a few more items, then ack everything. Return the deliveries and the ids of the new items."""
    got: list[Delivery] = []
    async with Client(host.address) as client:
        new = [result.require() for result in await client.enqueue([Item(TOPIC, b"new") for _ in range(40)])]
        while len(got) < expected + len(new):
            page = await client.dequeue({TOPIC: 100}, wait_ms=5_000, lease_ms=60_000)
            # A host with a slow disk may reply without items, and delivers them to a later call.
            left = 0 if page else (await client.count(ItemFilter(TOPIC))).items
            assert page or left, f"only {len(got)} of {expected} items and {len(new)} new ones were delivered"
            for outcome in await client.ack(page):
                outcome.require()
            got += page
        assert await client.dequeue({TOPIC: 1}) == []
    return got, new


def serve_copy(copy: RestartableHost, book: Book, tables: Tables, epoch_above: int) -> None:
    """Check that the host on the copy delivers each of its items once and uses no id again."""
    held = contents(tables)
    copy.start()
    got, new = run(empty(copy, len(held)))
    assert copy.stop() == 0
    assert {delivery.id: delivery.payload for delivery in got} == held | dict.fromkeys(new, b"new")
    assert len(got) == len(held) + len(new)
    assert not set(new) & set(book.payloads)
    assert all(parse_id(item, "id")[1] >> SEQUENCE_BITS > epoch_above for item in new)
    assert tables.rows() == []


def contents(tables: Tables) -> dict[str, bytes]:
    """Return the payload of every item by id."""
    return {
        format_id(shard, number): bytes(payload)
        for shard in tables.shards
        for number, payload in tables.query(shard, "SELECT id, payload FROM {item}")
    }


def last_epoch(host: RestartableHost) -> int:
    epochs: dict[str, int] = json.loads((host.folder / "coordinator.json").read_text())["epochs"]
    return max(epochs.values())


def shell(text: str, folder: Path) -> None:
    """Run commands of the runbook."""
    subprocess.run(["bash", "-euo", "pipefail", "-c", text], cwd=folder, check=True, capture_output=True, timeout=60)


# ---------------------------------------------------------------------- SQLite


def test_a_copy_of_sqlite_files_made_under_load_has_every_acknowledged_item(tmp_path: Path) -> None:
    [backup] = blocks("SQLite", "sh")
    data, restored = tmp_path / "foqs-data", tmp_path / "restored"
    with RestartableHost(tmp_path / "host", f"sqlite:{data}") as host:
        host.start()
        host.kill9()
        host.start()
        book, begun, ended = run(under_load(host, lambda: shell(backup, tmp_path)))
        # The host was restarted after the backup: its last epoch is in no copy.
        host.kill9()
        host.start()
        assert host.stop() == 0
    shell(f"mkdir {restored}; cp backup/shard-*.db {restored}", tmp_path)
    tables = in_sqlite(restored)
    check_copy(book, begun, ended, contents(tables))
    with RestartableHost(tmp_path / "copy", f"sqlite:{restored}") as copy:
        (copy.folder / "coordinator.json").write_bytes((host.folder / "coordinator.json").read_bytes())
        serve_copy(copy, book, tables, last_epoch(host))


# --------------------------------------------------------------------- MariaDB


@pytest.fixture
def servers() -> Iterator[tuple[MariaDb, MariaDb]]:
    pair = MariaDb(), MariaDb()
    for server in pair:
        server.start()
    yield pair
    for server in pair:
        server.remove()


def write_access(file: Path, server: MariaDb, user: str, password: str = "") -> None:
    file.write_text(f"[client]\nsocket={server.socket}\nuser={user}\npassword={password}\n")
    file.chmod(0o600)


@pytest.fixture(params=["current", "older"])
def backup_host_command(request: pytest.FixtureRequest) -> Sequence[str]:
    """The command of the host whose tables are dumped: of this version, or of an older one."""
    return HOST if request.param == "current" else installed(request.config, OLDER).host


@pytest.mark.mysql
def test_a_dump_of_mariadb_made_under_load_is_served_by_another_server(
    servers: tuple[MariaDb, MariaDb], backup_host_command: Sequence[str], tmp_path: Path
) -> None:
    old, new = servers
    [backup] = blocks("MySQL and MariaDB", "sh")
    [grants] = blocks("MySQL and MariaDB", "sql")
    [restore] = re.findall(r"   ```sh\n(.*?)   ```", section("Restore"), re.DOTALL)
    old.query("CREATE DATABASE foqs")
    for statement in grants.split(";\n"):
        if statement.strip():
            old.query(statement.replace("10.%", "localhost"))
    write_access(tmp_path / "backup.cnf", old, "foqs_backup", "secret-3")
    write_access(tmp_path / "restore.cnf", new, "root")
    url = f"mysql://root@127.0.0.1:{old.port}/foqs"
    with RestartableHost(tmp_path / "host", url, command=backup_host_command) as host:
        host.start()
        book, begun, ended = run(under_load(host, lambda: shell(backup, tmp_path)))
        host.kill9()
    shell(restore, tmp_path)
    tables = in_mariadb(new, "foqs")
    check_copy(book, begun, ended, contents(tables))
    with RestartableHost(tmp_path / "copy", f"mysql://root@127.0.0.1:{new.port}/foqs") as copy:
        # ZooKeeper's data is lost: the runbook wrote epochs above all that were used.
        [epochs] = re.findall(r"^\s*(\{\"epochs\".*\})$", section("Restore"), re.MULTILINE)
        (copy.folder / "coordinator.json").write_text(epochs)
        serve_copy(copy, book, tables, 1_000)
