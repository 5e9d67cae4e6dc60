"""The consoles of three hosts of a cluster: each shows all of it."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Callable, Iterator, Sequence

import pytest

from foqs.dev.host_process import HostProcess
from foqs.dev.local_cluster import LocalCluster
from foqs.runtime.clock import SystemClock
from foqs_client import Client, Item
from shardmgr.documents import render_member
from shardmgr.model import Member
from shardmgr.registry.zookeeper_registry import ZooKeeperRegistry
from tests.support.aio import run
from tests.support.cluster import cluster
from tests.support.console import Answer, Browser, elements, hidden_fields, unique
from tests.support.event_stream import EventStream
from tests.support.poll import until

pytestmark = [pytest.mark.process, pytest.mark.mysql, pytest.mark.zookeeper, pytest.mark.timeout(300)]

SHARDS = 6


@pytest.fixture(scope="module")
def running() -> Iterator[LocalCluster]:
    with cluster(shards=SHARDS, with_consoles=True) as found:
        yield found


def browser_of(host: HostProcess) -> Browser:
    return Browser(int(host.options["server.console_port"]))


def test_any_host_shows_the_items_of_all_hosts(running: LocalCluster) -> None:
    spread, later = unique("spread"), unique("later")
    first = browser_of(running.hosts[0])
    totals: list[tuple[int, int]] = []

    def is_counted() -> bool:
        found = counted(first) if is_settled(first) else None
        totals.extend([] if found is None else [found])
        return found is not None

    until(is_counted, "all hosts and shards are served", 120.0)
    [(ready, deferred)] = totals

    async def fill() -> None:
        async with Client(running.url) as client:
            for _ in range(20):
                await client.enqueue([Item(spread, b"x")] * 3)
            await client.enqueue([Item(later, b"x", delay_ms=3_600_000)] * 5)

    run(fill())
    for host in running.hosts:
        browser = browser_of(host)
        # Other hosts report about once a second.
        until(
            lambda browser=browser: counted(browser) == (ready + 60, deferred + 5),  # type: ignore[misc]
            f"{host.options['server.name']} shows all items",
        )
        until(lambda browser=browser: is_settled(browser), "the page shows no problem")  # type: ignore[misc]
        # The host asks the others for it, and on a busy machine one may be late.
        for path, query, text in (
            ("/topics", {"prefix": spread}, f"{spread} 60 0 0 0"),
            ("/topics", {"prefix": later, "state": "any"}, f"{later} 0 0 5 0"),
            ("/topic", {"topic": spread}, "ready 60"),
        ):
            until(
                lambda browser=browser, path=path, query=query, text=text: text in browser.get(path, **query).text,  # type: ignore[misc]
                f"{path} shows {text!r}",
            )


def is_settled(browser: Browser) -> bool:
    """Return whether all shards are served, and all hosts have reported their items: until then counts may be too low."""
    text = browser.get("/").text
    return "3 hosts, 6 shards, all served" in text and "No problem found" in text and "≥" not in text


def counted(browser: Browser) -> tuple[int, int] | None:
    """Return the ready and the deferred items that the overview shows; None while they may be too few."""
    found = re.search(r"ready (\d+) leased \d+ deferred (\d+) ", browser.get("/").text)
    return None if found is None else (int(found[1]), int(found[2]))


def is_even(body: str) -> bool:
    """Return whether a page of the cluster draws two shards at each host, and none on its way."""
    if '<svg class="owners"' not in body:
        return False
    drawing = body[body.index('<svg class="owners"') : body.index("</svg>", body.index('<svg class="owners"'))]
    owners = re.findall(r"(host\d): (\d+) shards", drawing)
    is_owned = len(re.findall(r'<rect class="shard owned"', drawing)) == SHARDS
    return is_owned and owners == [(f"host{number}", "2") for number in (1, 2, 3)]


def until_even(running: LocalCluster) -> None:
    """Wait until no shard moves any more: a test before may have moved some."""
    browser = browser_of(running.hosts[0])
    until(lambda: is_even(browser.get("/cluster").body), "each host owns two shards", 120.0)


def test_the_picture_shows_each_shard_at_its_owner(running: LocalCluster) -> None:
    until_even(running)


def test_a_drained_host_is_drawn_without_shards_while_the_page_is_open(running: LocalCluster) -> None:
    first, second = (browser_of(host) for host in running.hosts[:2])
    with EventStream(first, "/cluster") as stream:
        second.post("/cluster", action="drain", host="host3", confirmed="1")
        until(
            lambda: "host3: 0 shards, drained" in (stream.next("live") or ""),
            "the picture shows the drained host",
            60.0,
        )
    second.post("/cluster", action="undrain", host="host3")


def test_a_shard_is_moved_and_drained(running: LocalCluster) -> None:
    browser = browser_of(running.hosts[0])
    row = re.compile(r'<tr id="shard-0">.*?</tr>', re.DOTALL)

    def shard() -> str:
        found = row.search(browser.get("/cluster").body)
        assert found is not None
        return " ".join(re.sub(r"<[^>]*>", " ", found[0]).split())

    until_even(running)
    (owner,) = re.findall(r"host\d", shard())
    other = next(name for name in ("host1", "host2") if name != owner)
    asked = browser.post("/cluster", action="move_shard", shard="0", to=other)
    assert f"{other} keeps it as long as it runs" in asked.text
    assert "is being handed over" in browser.submit("/cluster", hidden_fields(asked, "move_shard")).text
    until(lambda: f"owned {other}" in shard() and f"moved to {other}" in shard(), "its owner is the other host", 60.0)
    asked = browser.post("/cluster", action="move_shard", shard="0", to="")
    assert "The planner chooses its host" in asked.text
    browser.submit("/cluster", hidden_fields(asked, "move_shard"))
    until(lambda: "moved to" not in shard(), "the shard is nobody's by name")
    browser.submit("/cluster", hidden_fields(browser.post("/cluster", action="drain_shard", shard="0"), "drain_shard"))
    until(lambda: "accepts no new items" in shard(), "the shard is drained")
    browser.post("/cluster", action="undrain_shard", shard="0")
    until(lambda: "accepts no new items" not in shard(), "the shard accepts items")
    assert "shard: this is missing" in browser.post("/cluster", action="move_shard").text


async def _announced(running: LocalCluster, names: Sequence[str], look: Callable[[], None]) -> None:
    """Let members with these names be in the coordinator's folder while `look` runs."""
    registry = ZooKeeperRegistry(running.zookeeper.address, "/foqs/v1", 30_000, SystemClock().monotonic_ms)
    await registry.open()
    try:
        for number, name in enumerate(names):
            member = Member(name, f"{number:032x}", f"{name}:1", tier="elsewhere", region=name)
            await registry.announce("members", member.nonce, render_member(member))
        await asyncio.to_thread(look)
    finally:
        await registry.close()


def _dangerous(page: Answer) -> list[tuple[str, tuple[str, ...]]]:
    """Return the elements that load or run something. The charts of a page may have grown."""
    names = ("script", "img", "iframe", "object", "link", "form")
    return [
        (tag, attributes)
        for tag, attributes in elements(page.body)
        if tag in names or any(name.startswith("on") for name in attributes)
    ]


def test_a_member_with_markup_in_its_name_makes_no_element(running: LocalCluster) -> None:
    browser = browser_of(running.hosts[0])
    hostile, harmless = "<script>alert(1)</script>\"><img src=x onerror=alert(1)>'", "harmless"
    pages: dict[str, list[Answer]] = {}

    for name in (hostile, harmless):

        def look(name: str = name) -> None:
            found: list[Answer] = []

            def shows(path: str, count: int) -> bool:
                found[-1:] = [browser.get(path)]
                return found[-1].text.count(name) >= count and (path == "/" or is_even(found[-1].body))

            pages[name] = []
            # Two hosts of one name are a problem that the overview finds.
            for path, count in (("/cluster", 2), ("/", 1)):
                until(lambda path=path, count=count: shows(path, count), f"{path} shows the members", 120.0)  # type: ignore[misc]
                pages[name].append(found[-1])

        run(_announced(running, [name, name], look))
        until(lambda name=name: name not in browser.get("/cluster").text, "the members are gone", 60.0)  # type: ignore[misc]
    for shown, plain in zip(pages[hostile], pages[harmless], strict=True):
        assert hostile not in shown.body
        assert hostile in shown.text
        assert _dangerous(shown) == _dangerous(plain)
    assert elements(pages[hostile][0].body) == elements(pages[harmless][0].body)


def test_a_killed_host_is_what_the_overview_finds(running: LocalCluster) -> None:
    first, last = browser_of(running.hosts[0]), running.hosts[2]
    last.stop(signal.SIGKILL)
    try:
        until(lambda: "No problem found" not in first.get("/").text, "the overview says that something is wrong", 60.0)
    finally:
        last.start()
    until(lambda: "No problem found" in first.get("/").text, "the overview finds nothing", 120.0)
