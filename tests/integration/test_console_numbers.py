"""Each number on a page of the console, at rest, is that of the command line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from foqs.cli import root
from foqs.console.topic_pages import STATES
from foqs_client import Client, Item
from tests.integration.test_console import OpenHost, calls, kill_items, put
from tests.integration.test_console_figures import topic_page
from tests.support.console import Browser, hidden_fields
from tests.support.poll import until

pytestmark = [pytest.mark.process]

HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenHost]:
    """A host with items in all states, in two topics."""
    with OpenHost(tmp_path_factory.mktemp("numbers") / "host") as found:
        found.start()
        for _ in range(3):
            put(found, *[Item("mail", b"12345", priority=n % 3) for n in range(411)])
        put(found, *[Item("mail", b"x", delay_ms=n * HOUR_MS) for n in range(1, 8)])
        kill_items(found, "mail-sad", 6)

        async def lease(client: Client) -> None:
            await client.dequeue({"mail": 4}, lease_ms=HOUR_MS // 2)

        calls(found, lease)
        yield found


@pytest.fixture
def browser(host: OpenHost) -> Browser:
    return Browser(host.console_port)


def foqs(host: OpenHost, *arguments: str) -> Any:
    """Return what the command line says, as JSON."""
    done = CliRunner().invoke(root, [*arguments, "--address", host.address, "-o", "json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def foqs_one(host: OpenHost, *arguments: str) -> Any:
    """Return the only row of what the command line says."""
    (row,) = foqs(host, *arguments)
    return row


def cells(row: str) -> list[str]:
    """Return the texts of a row of a table."""
    found = re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)
    return [re.sub(r"<[^>]*>", "", cell).strip() for cell in found]


def rows(body: str, caption: str) -> list[list[str]]:
    """Return the body of the table with this caption."""
    tables = re.findall(r"<table[^>]*>\s*<caption[^>]*>(.*?)</caption>(.*?)</table>", body, re.DOTALL)
    (table,) = [contents for title, contents in tables if title.startswith(caption)]
    lines = re.findall(r"<tr[^>]*>.*?</tr>", table[table.find("<tbody>") :], re.DOTALL)
    return [cells(line) for line in lines]


def figures(body: str) -> dict[str, str]:
    """Return the figures of a page by their names."""
    found = re.findall(r"<div><dt>(.*?)</dt><dd>(.*?)</dd></div>", body, re.DOTALL)
    return {name: re.sub(r"<[^>]*>", "", value).strip() for name, value in found}


def test_overview(host: OpenHost, browser: Browser) -> None:
    listed = foqs(host, "topic", "list", "--all")
    expected = {state: f"{sum(row[state] for row in listed):,}" for state in STATES}

    def shown() -> dict[str, str]:
        found = figures(browser.get("/").body)
        return {state: found[state] for state in STATES}

    until(lambda: shown() == expected, f"the overview shows {expected}")  # it is collected once a second

    def usages() -> list[list[str]]:
        names = ("items", "bytes", "topics", "enqueues_last_minute")
        return [[row["name"], *(f"{row[name]:,}" for name in names)] for row in foqs(host, "namespace", "usage")]

    # A minute after an enqueue it may end between the two.
    until(lambda: rows(browser.get("/").body, "Namespaces") == usages(), "the overview shows the usage")
    page = browser.get("/")
    hosts, shards = foqs(host, "host", "list"), foqs(host, "shard", "list")
    assert f"{len(hosts)} host, {len(shards)} shards, all served" in page.text


@pytest.mark.parametrize("order", ["name", "ready", "dead"])
def test_topics(host: OpenHost, browser: Browser, order: str) -> None:
    page = browser.get("/topics", state="any", order=order, prefix="mail")
    expected = [
        [
            row["topic"],
            *(f"{row[state]:,}" for state in STATES),
            "-" if row["best_priority"] is None else str(row["best_priority"]),
        ]
        for row in foqs(host, "topic", "list", "--all", "--prefix", "mail")
        if order == "name" or row[order]
    ]
    assert [row[:6] for row in rows(page.body, "Topics by")] == expected


def test_topic(host: OpenHost, browser: Browser) -> None:
    row = foqs_one(host, "topic", "show", "mail")
    page = topic_page(browser, "mail")
    found = figures(page.body)
    assert [found[state] for state in STATES] == [f"{row[state]:,}" for state in STATES]
    assert (found["best priority"], found["delivery"]) == (str(row["best_priority"]), "on")
    by_priority = {cell[0]: int(cell[1]) for cell in rows(page.body, "Ready items by priority")}
    peeked = foqs(host, "peek", "mail", "--limit", "1000")
    assert sum(by_priority.values()) == row["ready"]
    assert by_priority["0"] == sum(item["priority"] == 0 for item in peeked)
    assert sum(int(cell[1]) for cell in rows(page.body, "Deferred items by")) == row["deferred"]
    assert [cell[0] for cell in rows(page.body, "Items that are ready")] == [item["id"] for item in peeked[:20]]


def test_item(host: OpenHost, browser: Browser) -> None:
    last = foqs(host, "peek", "mail", "--limit", "100")[-1]
    explanation = foqs_one(host, "explain", last["id"])
    page = browser.get("/item", id=last["id"])
    assert f"{explanation['better_items']} items of its topic come before it" in page.text
    for sentence in explanation["remedies"]:
        assert sentence in page.text
    found = {row[0]: row[1] for row in rows(page.body, "Fields of the item")}
    assert (found["Priority"], found["Deliveries"]) == (str(last["priority"]), str(last["attempt"]))
    assert found["Payload"].startswith(f"{last['payload_bytes']} bytes")


def test_dead_items(host: OpenHost, browser: Browser) -> None:
    listed = foqs(host, "dead", "list", "--topic", "mail-sad")
    page = browser.get("/dead", topic="mail-sad")
    assert [(row[1], row[2]) for row in rows(page.body, "Dead items")] == [
        (item["id"], item["dead_reason"]) for item in listed
    ]
    assert rows(page.body, "Why the items") == [["6", listed[0]["dead_reason"]]]
    asked = browser.submit("/bulk", hidden_fields(page, "preview"))
    assert f"{foqs_one(host, 'topic', 'show', 'mail-sad')['dead']} items match at the moment" in asked.text


def test_purge_and_bulk_job_count_what_the_topic_has(host: OpenHost, browser: Browser) -> None:
    row = foqs_one(host, "topic", "show", "mail")
    every = sum(row[state] for state in STATES)
    assert f"{every:,} at the moment" in browser.post("/topic", topic="mail", action="purge").text
    preview = browser.submit("/bulk", {"action": "preview", "what": "cancel", "topic": "mail", "state": "ready"})
    assert f"{row['ready']:,} items match at the moment" in preview.text


def test_namespace_and_cluster(host: OpenHost, browser: Browser) -> None:
    settings = foqs_one(host, "namespace", "show", "default")
    page = browser.get("/namespace", namespace="default")
    shown = {row[0]: row[1].split(" ")[0] for row in rows(page.body, "Limits and defaults")}
    assert shown == {name: f"{settings[name]:,}" for name in shown}
    assert set(shown) == set(settings) - {"name", "tier"}
    (usage,) = [row for row in foqs(host, "namespace", "usage") if row["name"] == "default"]
    assert figures(page.body)["items"] == f"{usage['items']:,}"
    shards = foqs(host, "shard", "list")
    assert [row[:6] for row in rows(browser.get("/cluster").body, "Shards")] == [
        [
            str(shard["shard"]),
            shard["state"],
            shard["owner"],
            f"{shard['epoch']:,}",
            shard["database"] or "-",
            f"{shard['weight']:,}",
        ]
        for shard in shards
    ]


def test_audit(host: OpenHost, browser: Browser) -> None:
    browser.post("/topic", topic="noted", action="pause")
    calls(host, lambda client: client.resume_topic("noted"))
    listed = foqs(host, "audit", "--limit", "1000")
    shown = rows(browser.get("/audit").body, "The newest is first")
    assert [row[4:7] for row in shown] == [[row["call"], row["namespace"], row["outcome"]] for row in listed]
    by_call = {row[4]: row for row in reversed(shown)}
    assert by_call["pauseTopic"][2] == "console 127.0.0.1"
    assert by_call["resumeTopic"][2].startswith("127.0.0.1")
