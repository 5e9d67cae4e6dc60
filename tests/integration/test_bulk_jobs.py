"""Bulk jobs of real hosts that are killed: every item is changed once, and the job ends."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner

from foqs.cli import root
from foqs_client import (
    BulkJob,
    Change,
    Client,
    Delivery,
    FoqsError,
    InvalidArgument,
    Item,
    ItemFilter,
    LimitExceeded,
    Nack,
)
from tests.support.aio import run
from tests.support.mariadb import MariaDb
from tests.support.poll import eventually
from tests.support.processes import RestartableHost
from tests.support.real_cluster import RealCluster
from tests.support.zookeeper import ZooKeeper

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

COUNT = 2_000
RATE = 250


async def put(client: Client, topic: str, count: int = COUNT) -> list[bytes]:
    """Enqueue items with different payloads, and return these."""
    payloads = [f"{topic} {number}".encode() for number in range(count)]
    for start in range(0, count, 200):
        for result in await client.enqueue([Item(topic, payload) for payload in payloads[start : start + 200]]):
            result.require()
    return payloads


async def payloads_of(client: Client, topic: str) -> list[bytes | None]:
    """Return the payloads of a topic's items, over all shards."""
    found: list[bytes | None] = []
    for shard in (await client.routing()).shards:
        cursor: str | None = None
        while True:
            page = await client.list_items(shard.shard, ItemFilter(topic), 500, cursor, with_payload=True)
            found += [item.payload for item in page.items]
            cursor = page.next_cursor
            if cursor is None:
                break
    return found


async def seen(client: Client, job_id: str, wanted: Callable[[BulkJob], bool], what: str) -> BulkJob:
    """Wait until a job is as wanted. A host that is just dead or starting is asked again."""
    last: list[BulkJob] = []

    async def look() -> bool:
        try:
            last.append(await client.bulk_job(job_id))
        except FoqsError as error:
            if not error.may_succeed_later:
                raise
            return False
        return wanted(last[-1])

    await eventually(look, what, timeout_s=90)
    return last[-1]


async def done(client: Client, job_id: str) -> BulkJob:
    return await seen(client, job_id, lambda job: not job.is_live and job.is_settled, "the job has ended")


def assert_each_once(found: list[bytes | None], payloads: list[bytes]) -> None:
    assert Counter(found) == Counter(payloads)


# ------------------------------------------------------------------- a host alone


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[RestartableHost]:
    with RestartableHost(tmp_path / "host", f"sqlite:{tmp_path / 'data'}") as host:
        host.start()
        yield host


def test_move_goes_on_after_each_kill_and_moves_each_item_once(alone: RestartableHost) -> None:
    rng = Random(3)

    async def story() -> None:
        async with Client(alone.address, timeout_ms=20_000) as client:
            payloads = await put(client, "from")
            job = await client.start_bulk_job("move", ItemFilter("from"), move_to="to", rate_per_s=RATE, expected=COUNT)
            changed = 0
            for _ in range(3):
                least = changed + rng.randrange(50, 300)
                # On a slow machine it may have ended by now.
                job = await seen(
                    client,
                    job.id,
                    lambda job, least=least: job.changed >= least or not job.is_live,  # type: ignore[misc]
                    "it goes on",
                )
                changed = job.changed
                await asyncio.to_thread(alone.kill9)
                await asyncio.to_thread(alone.start)
            job = await done(client, job.id)
            assert job.state == "done"
            assert job.changed <= COUNT
            assert job.at_least or job.changed == COUNT
            assert_each_once(await payloads_of(client, "to"), payloads)
            assert await payloads_of(client, "from") == []

    run(story(), timeout=200)


def test_interrupted_job_stays_so_over_a_restart_and_is_resumed(alone: RestartableHost) -> None:
    async def story() -> None:
        async with Client(alone.address, timeout_ms=20_000) as client:
            payloads = await put(client, "from")
            job = await client.start_bulk_job("move", ItemFilter("from"), move_to="to", rate_per_s=RATE)
            await seen(client, job.id, lambda job: job.changed > 0, "it works")
            await client.control_bulk_job(job.id, "interrupt")
            stopped = await seen(client, job.id, lambda job: job.is_settled, "it stands still")
            assert len(await payloads_of(client, "to")) == stopped.changed
            assert await asyncio.to_thread(alone.stop) == 0
            await asyncio.to_thread(alone.start)
            assert (await client.bulk_job(job.id)).state == "interrupted"
            await client.control_bulk_job(job.id, "resume")
            job = await done(client, job.id)
            assert (job.state, job.changed, job.at_least) == ("done", COUNT, False)
            assert_each_once(await payloads_of(client, "to"), payloads)

    run(story(), timeout=120)


def test_each_action_changes_what_matches_and_nothing_else(alone: RestartableHost) -> None:
    async def story() -> None:
        async with Client(alone.address, timeout_ms=20_000) as client:
            for topic in ("a", "b"):
                await put(client, topic, 30)
            job = await client.start_bulk_job("update", ItemFilter("a"), Change(priority=-3, delay_ms=3_600_000))
            assert (await done(client, job.id)).changed == 30
            assert (await client.count(ItemFilter("a", ["deferred"], priority_max=-3))).items == 30
            job = await client.start_bulk_job("cancel", ItemFilter("a"))
            assert (await done(client, job.id)).changed == 30
            leased: list[Delivery] = []
            while len(leased) < 30:  # a dequeue returns without the items of a shard that is late
                leased += await client.dequeue({"b": 30}, wait_ms=5_000, lease_ms=3_600_000)
            for outcome in await client.nack([Nack(item.id, item.token, dead=True) for item in leased[:20]]):
                outcome.require()
            job = await client.start_bulk_job("move", ItemFilter("b"), move_to="c")
            moved = await done(client, job.id)
            assert (moved.state, moved.seen, moved.changed, moved.failed) == ("done", 30, 20, 10)
            assert "leased" in (moved.refusal or "")
            assert (await client.count(ItemFilter("c", ["ready"]))).items == 20
            assert [found.state for found in await client.bulk_jobs()] == ["done"] * 3

    run(story(), timeout=120)


def test_items_that_die_again_at_once_do_not_keep_the_job_busy(alone: RestartableHost) -> None:
    """The first page follows the start of the walk at once. Its items may be redriven again, as shard clocks differ."""

    async def story() -> None:
        async with Client(alone.address, timeout_ms=20_000) as client:
            for result in await client.enqueue([Item("bad", b"x", attempts_max=1)] * 100):
                result.require()
            attempts = 0

            async def fail_all() -> None:
                nonlocal attempts
                while True:
                    found = await client.dequeue({"bad": 100}, wait_ms=500)
                    attempts += len(found)
                    if found:
                        await client.nack(found)

            failing = asyncio.ensure_future(fail_all())
            await eventually(lambda: _is(client, ItemFilter("bad", ["dead"]), 100), "all are dead")
            page = 20
            job = await client.start_bulk_job("redrive", ItemFilter("bad"), rate_per_s=page)
            job = await done(client, job.id)
            await eventually(lambda: _is(client, ItemFilter("bad", ["dead"]), 100), "all are dead again")
            failing.cancel()
            assert job.state == "done"
            assert 100 <= job.changed <= 100 + page
            assert attempts == 100 + job.changed

    run(story(), timeout=120)


async def _is(client: Client, only: ItemFilter, count: int) -> bool:
    return (await client.count(only)).items == count


def test_namespace_that_is_deleted_ends_its_jobs(alone: RestartableHost) -> None:
    async def story() -> None:
        async with Client(alone.address, namespace="default", timeout_ms=20_000) as admin:
            from foqs_client import Namespace

            await admin.create_namespace(Namespace("shop"))
            async with Client(alone.address, namespace="shop", timeout_ms=20_000) as client:
                await put(client, "t", 50)
                job = await client.start_bulk_job("cancel", ItemFilter("t"), rate_per_s=1)
                await seen(client, job.id, lambda job: job.changed > 0, "it works")
                await client.purge_topic("t")
                await admin.delete_namespace("shop")
                await admin.create_namespace(Namespace("shop"))
                await put(client, "t", 5)
                job = await done(client, job.id)
                assert job.state in ("failed", "done")
                assert (await client.count(ItemFilter("t"))).items == 5

    run(story(), timeout=120)


def test_jobs_are_bounded_and_a_start_can_be_repeated(alone: RestartableHost) -> None:
    async def story() -> None:
        async with Client(alone.address, timeout_ms=20_000) as client:
            await put(client, "t")  # none of eight jobs at this rate ends meanwhile
            only = ItemFilter("t")
            first = await client.start_bulk_job("cancel", only, rate_per_s=1, start_key="k")
            assert (await client.start_bulk_job("cancel", only, rate_per_s=1, start_key="k")).id == first.id
            with pytest.raises(LimitExceeded):
                await client.start_bulk_job("cancel", only, exclusive=True)
            for _ in range(7):
                await client.start_bulk_job("cancel", only, rate_per_s=1)
            with pytest.raises(LimitExceeded):
                await client.start_bulk_job("cancel", only)
            for job in await client.bulk_jobs():
                await client.control_bulk_job(job.id, "cancel")
            with pytest.raises(InvalidArgument):
                await client.control_bulk_job(first.id, "resume")

    run(story(), timeout=120)


def test_command_line_changes_items_by_a_job_and_watches_it(alone: RestartableHost) -> None:
    def foqs(*args: str) -> list[dict[str, object]]:
        result = CliRunner().invoke(root, [*args, "--address", alone.address, "-o", "json"])
        assert result.exit_code == 0, result.stderr
        rows: list[dict[str, object]] = json.loads(result.stdout)
        return rows

    async def fill() -> None:
        async with Client(alone.address, timeout_ms=20_000) as client:
            await put(client, "mail", 100)

    run(fill())
    [row] = foqs("item", "move", "--topic", "mail", "--to", "other", "--yes")
    assert (row["matched"], row["changed"], row["left"]) == (100, 100, 0)
    [job] = foqs("jobs", "list")
    assert (job["id"], job["state"], job["changed"]) == (row["job"], "done", 100)
    [row] = foqs("item", "cancel", "--topic", "other", "--yes", "--rate", "1", "--background")
    [job] = foqs("jobs", "interrupt", str(row["job"]))
    assert job["state"] == "interrupted"
    [job] = foqs("jobs", "cancel", str(row["job"]))
    assert job["state"] == "cancelled"


# ----------------------------------------------------------------------- a cluster


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[ZooKeeper]:
    with ZooKeeper() as server:
        yield server


@pytest.fixture(scope="module")
def mariadb() -> Iterator[MariaDb]:
    server = MariaDb()
    server.start()
    yield server
    server.remove()


@pytest.mark.mysql
@pytest.mark.zookeeper
def test_job_of_a_cluster_goes_on_when_its_hosts_are_killed(
    tmp_path: Path, zookeeper: ZooKeeper, mariadb: MariaDb
) -> None:
    names = ("one", "two", "three")
    cluster = RealCluster(tmp_path, zookeeper, mariadb, shards=6)
    cluster.init()
    with ExitStack() as stack:
        hosts = {name: stack.enter_context(cluster.host(name)) for name in names}
        for host in hosts.values():
            host.launch()
        for host in hosts.values():
            host.wait_until_ready()
        cluster.wait_until_served(names)
        run(_kill_owners(hosts), timeout=250)


async def _kill_owners(hosts: dict[str, RestartableHost]) -> None:
    url = "foqs://" + ",".join(f"127.0.0.1:{host.port}" for host in hosts.values())
    async with Client(url, timeout_ms=30_000) as client:
        payloads = await put(client, "from")
        job = await client.start_bulk_job("move", ItemFilter("from"), move_to="to", rate_per_s=100, expected=COUNT)
        restarts = []
        for kills in (1, 2):
            job = await seen(
                client,
                job.id,
                lambda job, kills=kills: job.owner is not None and job.changed >= 200 * kills,  # type: ignore[misc]
                "it works",
            )
            owner = job.owner
            assert owner is not None
            await asyncio.to_thread(hosts[owner].kill9)
            await seen(client, job.id, lambda job, owner=owner: job.owner not in (owner, None), "another has it")  # type: ignore[misc]
            # The job goes on meanwhile, and a busy machine needs long for it.
            restarts.append(asyncio.create_task(asyncio.to_thread(hosts[owner].start)))
        await client.control_bulk_job(job.id, "interrupt")
        stopped = await seen(client, job.id, lambda job: job.is_settled, "it stands still")
        assert stopped.state == "interrupted"
        await asyncio.gather(*restarts)
        await client.control_bulk_job(job.id, "resume")
        job = await done(client, job.id)
        assert (job.state, job.at_least) == ("done", True)
        assert job.changed <= COUNT
        assert_each_once(await payloads_of(client, "to"), payloads)
        assert await payloads_of(client, "from") == []
        entries = (await client.audit(1_000)).entries
        commands = [entry.target for entry in entries if entry.call == "controlBulkJob"]
        assert commands == [f"id={job.id} command=resume", f"id={job.id} command=interrupt"]
