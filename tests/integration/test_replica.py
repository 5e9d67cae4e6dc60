"""A database is lost for good, and a replica without its last writes takes its place while the hosts run on.

These writes are lost, as with any asynchronous replica. The tests check what must
not be lost with them: no id is used twice, no epoch serves twice, and later calls
on the lost items get the right replies.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from foqs_client import Client, Delivery, FoqsError, Item, StaleLease, UnknownOutcome
from perf.lib.dequeue_all import dequeue_all
from tests.support.aio import run
from tests.support.poll import until
from tests.support.processes import RestartableHost
from tests.support.real_cluster import RealCluster, initialise_again
from tests.support.replication import Replication
from tests.support.tables import Tables, in_mariadb
from tests.support.zookeeper import ZooKeeper

pytestmark = [pytest.mark.process, pytest.mark.mysql, pytest.mark.timeout(240)]

_LEASE_MS = 600_000
_ITEMS = 40


@pytest.fixture
def database() -> Iterator[Replication]:
    with Replication() as servers:
        yield servers


@dataclass(slots=True)
class Book:
    """The record of a client, before and after the loss.

    Attributes:
        copied: payloads of items that the replica has.
        ids: every returned id, with the payload.
        forgotten: leases of copied items that the replica does not have.
        orphans: leases of items that the replica does not have.
        kept: leases that the replica has.
    """

    copied: set[bytes] = field(default_factory=set)
    ids: dict[str, bytes] = field(default_factory=dict)
    forgotten: list[Delivery] = field(default_factory=list)
    orphans: list[Delivery] = field(default_factory=list)
    kept: list[Delivery] = field(default_factory=list)

    async def put(self, client: Client, topic: str, number: int = _ITEMS) -> set[bytes]:
        """Enqueue items and check that their ids are new. Return their payloads."""
        payloads = [f"{topic}-{n}".encode() for n in range(number)]
        for payload in payloads:
            [result] = await client.enqueue([Item(topic, payload)])
            id_ = result.require()
            assert id_ not in self.ids, f"{id_} names {self.ids[id_]!r} and {payload!r}"
            self.ids[id_] = payload
        return set(payloads)

    async def before(self, client: Client) -> None:
        """Make the items and leases that the replica has."""
        self.copied = await self.put(client, "copied")
        leased = await take(client, "copied", 20)
        for outcome in await client.ack(leased[:10]):
            outcome.require()
        self.copied -= {item.payload for item in leased}
        self.kept = leased[10:]

    async def meanwhile(self, client: Client) -> None:
        """Make the items and leases that only the primary has."""
        await self.put(client, "lost")
        self.orphans = await take(client, "lost", 10)
        leased = await take(client, "copied", 10)
        for outcome in await client.ack(leased[:5]):
            outcome.require()
        self.forgotten = leased[5:]

    async def after(self, client: Client) -> None:
        """Check the replies to calls on earlier leases, and that the queue delivers all items that it has."""
        for outcome in await client.ack(self.orphans):
            outcome.require()
            assert outcome.already_gone
        for outcome in await client.ack(self.forgotten):
            assert isinstance(outcome.error, StaleLease)
        for outcome in await client.ack(self.kept):
            outcome.require()
            assert not outcome.already_gone
        new = await self.put(client, "new")
        found = await dequeue_all(client, "copied", "lost", "new")
        assert sorted(found) == sorted(self.copied | new)


async def take(client: Client, topic: str, count: int) -> list[Delivery]:
    taken: list[Delivery] = []
    while len(taken) < count:
        taken += await client.dequeue({topic: count - len(taken)}, wait_ms=1_000, lease_ms=_LEASE_MS)
    return taken


def until_every_shard_was_written(primary: Tables, replica: Tables) -> None:
    """Wait until every shard has lost a flush: a shard without a loss would rightly continue unchanged."""
    seen = replica.owners()
    until(lambda: all(owner > seen[shard] for shard, owner in primary.owners().items()), "every shard has lost a flush")


@pytest.mark.parametrize("dies", ["nobody", pytest.param("host before", marks=pytest.mark.long), "host with it"])
def test_a_standalone_host_serves_a_replica_without_the_last_writes(
    dies: str, database: Replication, tmp_path: Path
) -> None:
    """`host before`: the last epoch is lost too. `host with it`: the host's memory of it is lost too."""
    database.primary.query("CREATE DATABASE foqs")
    primary, replica = (in_mariadb(server, "foqs") for server in (database.primary, database.replica))
    book = Book()

    async def story(host: RestartableHost) -> None:
        async with Client(host.address, automatic_keys=False) as client:
            await book.before(client)
            await asyncio.to_thread(database.until_copied)
            database.stop_applying()
            if dies != "nobody":
                host.kill9()
                await asyncio.to_thread(host.start)
            await book.meanwhile(client)
            await asyncio.to_thread(until_every_shard_was_written, primary, replica)
            last = primary.owners()
            database.primary.kill9()
            begun = [asyncio.ensure_future(client.enqueue([Item("torn", b"%d" % n)])) for n in range(_ITEMS)]
            await asyncio.to_thread(until, lambda: not is_ready(host), "it is noticed")
            if dies == "host with it":
                host.kill9()
            database.promote()
            if dies == "host with it":
                await asyncio.to_thread(host.start)
            await asyncio.to_thread(until, lambda: has_epochs_above(replica, last), "every shard is taken over again")
            await asyncio.to_thread(host.wait_until_ready)
            await check_torn(await asyncio.gather(*begun, return_exceptions=True), client)
            await book.after(client)
            assert all(epoch == last[shard][0] + 1 for shard, (epoch, _) in replica.owners().items())

    with RestartableHost(tmp_path / "host", f"mysql://root@127.0.0.1:{database.port}/foqs") as host:
        host.start()
        run(story(host), timeout=180)
        assert host.stop() == 0
        assert "Traceback" not in host.log


def has_epochs_above(tables: Tables, last: dict[int, tuple[int, int]]) -> bool:
    return all(epoch > last[shard][0] for shard, (epoch, _) in tables.owners().items())


def is_ready(host: RestartableHost) -> bool:
    answer = host.get("/readyz")
    return answer is not None and answer[0] == 200


async def check_torn(results: Sequence[object], client: Client) -> None:
    """Check the calls in flight at the change of servers. Acknowledged items exist; items of unknown outcome may exist."""
    written, maybe = set[bytes](), set[bytes]()
    for number, result in enumerate(results):
        [error] = [one.error for one in result] if isinstance(result, list) else [result]
        if error is None:
            written.add(b"%d" % number)
        elif isinstance(error, UnknownOutcome):
            maybe.add(b"%d" % number)
        else:
            assert isinstance(error, FoqsError), error
    found = await dequeue_all(client, "torn")
    assert len(set(found)) == len(found)
    assert written <= set(found) <= written | maybe


@pytest.mark.zookeeper
@pytest.mark.parametrize("dies", ["nobody", pytest.param("all hosts", marks=pytest.mark.long), "ZooKeeper with them"])
def test_a_cluster_serves_a_replica_without_the_last_epochs(dies: str, database: Replication, tmp_path: Path) -> None:
    """`ZooKeeper with them`: the lost epochs are recorded nowhere, and the administrator sets epochs above them."""
    book = Book()
    with ExitStack() as stack:
        zookeeper = stack.enter_context(ZooKeeper())
        cluster = RealCluster(tmp_path, zookeeper, database.primary, 4, database.port)
        cluster.init()
        primary, replica = (in_mariadb(server, cluster.database) for server in (database.primary, database.replica))
        one, two = (stack.enter_context(cluster.host(name)) for name in ("one", "two"))
        address = f"{one.address},127.0.0.1:{two.port}"

        async def before() -> None:
            async with Client(one.address, automatic_keys=False) as client:
                await book.before(client)

        async def meanwhile() -> None:
            async with Client(address, automatic_keys=False) as client:
                await book.meanwhile(client)

        async def after() -> None:
            async with Client(address, automatic_keys=False) as client:
                await book.after(client)

        one.launch()
        cluster.wait_until_served(["one"])
        one.wait_until_ready()
        run(before())
        database.until_copied()
        database.stop_applying()
        two.launch()
        cluster.wait_until_served(["one", "two"])
        two.wait_until_ready()
        run(meanwhile())
        until_every_shard_was_written(primary, replica)
        last = primary.owners()
        # The replica has no record of the epochs of the shards that have moved.
        assert any(epoch > replica.owners()[shard][0] for shard, (epoch, _) in last.items())
        database.primary.kill9()
        if dies != "nobody":
            for host in (one, two):
                host.kill9()
        database.promote()
        if dies == "ZooKeeper with them":
            zookeeper.stop()
            shutil.rmtree(zookeeper.folder / "data")
            zookeeper.start()
            initialise_again(one.config, "4", "--epochs-above", "100")
        if dies != "nobody":
            for host in (one, two):
                host.launch()
        until(lambda: has_epochs_above(replica, last), "every shard is taken over again")
        cluster.wait_until_served(["one", "two"])
        for host in (one, two):
            host.wait_until_ready()
        run(after())
        for host in (one, two):
            assert host.stop() == 0
            assert "Traceback" not in host.log
