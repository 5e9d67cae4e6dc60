"""Configuration by calls on real hosts: it survives kill -9, other hosts see it, and a damaged file is reported."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path

import pytest

from foqs_client import Client, InvalidArgument, Item, Namespace, NamespaceNotFound, Topic, Unavailable
from tests.support.aio import run
from tests.support.mariadb import MariaDb
from tests.support.poll import eventually
from tests.support.processes import RestartableHost

pytestmark = [pytest.mark.process]


async def counted(client: Client) -> Topic:
    """Return the only topic, once the shards were counted after the takeover."""
    found: list[Topic] = []

    async def is_counted() -> bool:
        found[:] = (await client.topics()).topics
        return not any(topic.counts_lag for topic in found)

    await eventually(is_counted, "topics are counted")
    [topic] = found
    return topic


def test_namespaces_grants_and_pauses_survive_kill_9(tmp_path: Path) -> None:
    async def before(host: RestartableHost) -> None:
        async with Client(host.address, namespace="orders") as client:
            with pytest.raises(NamespaceNotFound):
                await client.enqueue([Item("t")])
            await client.create_namespace(Namespace("orders", payload_bytes_max=3))
            await client.set_grant("p", ["admin"])
            await client.pause_topic("t")
            [small, large] = await client.enqueue([Item("t", b"abc"), Item("t", b"abcd")])
            assert small.id
            assert large.error

    async def after(host: RestartableHost) -> None:
        async with Client(host.address, namespace="orders") as client:
            assert [grant.permissions for grant in await client.grants()] == [("admin",)]
            assert not await client.dequeue({"t": 1})
            topic = await counted(client)
            assert (topic.paused, topic.ready) == (True, 1)
            waiting = asyncio.ensure_future(client.dequeue({"t": 1}, wait_ms=20_000))
            await client.resume_topic("t")
            assert await waiting

    with RestartableHost(tmp_path / "host", f"sqlite:{tmp_path / 'data'}") as host:
        host.start()
        run(before(host))
        host.kill9()
        host.start()
        run(after(host))
        assert host.stop() == 0


@pytest.mark.parametrize("database", ["sqlite", pytest.param("mariadb", marks=pytest.mark.mysql)])
def test_a_lost_or_imported_catalog_loses_no_key(database: str, tmp_path: Path) -> None:
    """A repeated key returns its first id with an empty catalog, and again after a restore from an export."""
    keys = [f"key-{number}" for number in range(40)]

    async def put(client: Client) -> list[tuple[str | None, bool]]:
        results = await client.enqueue([Item("t", key.encode(), idempotency_key=key) for key in keys])
        return [(result.id, result.repeated) for result in results]

    async def story(host: RestartableHost) -> None:
        async with Client(host.address) as client:
            first = [(name, True) for name, _ in await put(client)]
            exported = await client.export_config()
        for restored in (False, True):
            host.kill9()
            file.unlink()
            host.start()
            async with Client(host.address) as client:
                if restored:
                    await client.import_config(exported)
                assert await put(client) == first
                slots = json.loads(await client.export_config())["slots"]
                assert slots == json.loads(exported)["slots"]
        async with Client(host.address) as client:
            with pytest.raises(InvalidArgument, match="recorded as those of shard 0"):
                await client.import_config(exported.replace("0-1022/2", "0-1021/3").replace("1-1023/2", "0-4"))

    file = tmp_path / "host" / "catalog.json"
    with contextlib.ExitStack() as stack:
        url = f"sqlite:{tmp_path / 'data'}"
        if database == "mariadb":
            server = MariaDb()
            server.start()
            stack.callback(server.remove)
            url = f"mysql://root@127.0.0.1:{server.port}/{server.database()}"
        host = stack.enter_context(RestartableHost(tmp_path / "host", url, {"store.shards": 2}))
        host.start()
        run(story(host))


def test_hosts_on_one_file_see_each_others_changes(tmp_path: Path) -> None:
    async def work(one: RestartableHost, two: RestartableHost) -> None:
        async with Client(one.address) as first, Client(two.address) as second:
            creates = [(first, second)[n % 2].create_namespace(Namespace(f"n{n}")) for n in range(12)]
            await asyncio.gather(*creates)

            async def both_see_all() -> bool:
                found = [await client.list_namespaces() for client in (first, second)]
                return all(len(listed.namespaces) == 13 for listed in found)

            await eventually(both_see_all, "both hosts list all namespaces")

    options = {"catalog.file": str(tmp_path / "catalog.json")}
    with (
        RestartableHost(tmp_path / "one", f"sqlite:{tmp_path / 'a'}", options) as one,
        RestartableHost(tmp_path / "two", f"sqlite:{tmp_path / 'b'}", options) as two,
    ):
        one.launch()
        two.launch()
        one.wait_until_ready()
        two.wait_until_ready()
        run(work(one, two))


def test_a_damaged_file_is_reported_and_kept_and_a_running_host_continues(tmp_path: Path) -> None:
    async def work(host: RestartableHost) -> None:
        async with Client(host.address) as client:
            file.write_text(good[:-20])
            with pytest.raises(Unavailable, match="line "):
                await client.pause_topic("t")
            [result] = await client.enqueue([Item("t")])
            assert result.id
            file.write_text(good)
            await client.pause_topic("t")

    file = tmp_path / "host" / "catalog.json"
    with RestartableHost(tmp_path / "host", f"sqlite:{tmp_path / 'data'}") as host:
        host.start()
        good = file.read_text()
        assert list(json.loads(good)["namespaces"]) == ["default"]
        run(work(host))
        assert host.stop() == 0
        before = host.log  # the running host may have read the damaged file, too, and said so
        file.write_text(good[:-20])
        host.launch()
        assert host.wait_for_exit() == 1
        [line] = [line for line in host.log.removeprefix(before).splitlines() if "is damaged" in line]
        assert str(file) in line
        assert "import an export" in line
        assert "Traceback" not in host.log
        assert file.read_text() == good[:-20]
