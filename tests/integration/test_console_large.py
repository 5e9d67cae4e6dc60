"""The console of a host with 100,000 topics and 1,000,000 dead items: no page waits until all of them are read."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from foqs.core.items.item import SEQUENCE_BITS, State
from foqs_client import Item
from tests.integration.test_console import OpenHost, calls, put
from tests.support.console import Browser, hidden_fields
from tests.support.poll import until

pytestmark = [pytest.mark.process, pytest.mark.long, pytest.mark.timeout(590)]

TOPICS = 100_000
DEAD = 1_000_000
SHARDS = 4
FIRST_ID = (1 << SEQUENCE_BITS) + 1_000_000
"""Of the first epoch, and above the ids that it has given."""
AGO_MS = 1_700_000_000_000


class LargeHost(OpenHost):
    """A host whose shards are filled by SQL before it serves them."""

    def __init__(self, folder: Path) -> None:
        self._data = folder / "data"
        super().__init__(folder, f"sqlite:{self._data}", {"store.shards": SHARDS})

    def fill(self) -> None:
        """Add topics with one ready item each, and dead items, to all shards."""
        for shard in range(SHARDS):
            with sqlite3.connect(self._data / f"shard-{shard}.db") as file:
                file.execute("PRAGMA synchronous = OFF")
                _insert(file, shard, TOPICS // SHARDS, State.READY, "t", 0)
                _insert(file, shard, DEAD // SHARDS, State.DEAD, "t", TOPICS)
                file.execute("INSERT OR IGNORE INTO topic SELECT DISTINCT namespace, topic FROM item")
            file.close()


def _insert(file: sqlite3.Connection, shard: int, count: int, state: State, prefix: str, offset: int) -> None:
    """Insert rows whose topics take turns. A tenth of the dead items is in one topic."""
    name = f"'{prefix}' || printf('%06d', (n * {SHARDS} + {shard}) % {TOPICS})"
    topic = f"CASE WHEN n % 10 = 0 THEN 'graveyard' ELSE {name} END" if state is State.DEAD else name
    file.execute(
        f"WITH RECURSIVE numbers(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n + 1 < {count}) "
        "INSERT INTO item (id, namespace, topic, priority, deliver_after_ms, enqueued_at_ms, lease_ms, policy, "
        "attempts_max, payload_bytes, payload, metadata, state, token, attempt) "
        f"SELECT {FIRST_ID + offset} + n, 'default', {topic}, n % 5, {AGO_MS} + n, {AGO_MS} + n, 30000, 1, 3, 1, "
        f"x'78', x'', {state:d}, 0, {3 if state is State.DEAD else 0} FROM numbers"
    )


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LargeHost]:
    with LargeHost(tmp_path_factory.mktemp("large") / "host") as found:
        found.start()
        assert found.stop() == 0
        found.fill()
        found.start()
        browser = Browser(found.console_port)
        until(lambda: "≥" not in browser.get("/").body, "all items are counted", 300.0, 1.0)
        yield found


def test_no_page_waits_until_all_is_read(host: LargeHost) -> None:
    browser = Browser(host.console_port)
    dead_id = calls(host, lambda client: client.dead("graveyard", 1)).items[0].id
    pages = (
        "/",
        "/topics",
        "/topics?state=any&prefix=t05",
        "/topics?state=dead",
        "/topics?order=ready",
        "/topics?order=age",
        "/topics?order=dead",
        "/topics?order=dead&cursor=900",
        "/topics?prefix=t099&order=ready",
        "/topic?topic=t000000",
        "/topic?topic=graveyard",
        "/topic?topic=graveyard&state=dead",
        "/topic?topic=absent",
        f"/item?id={dead_id}",
        "/dead",
        "/dead?topic=graveyard",
        "/enqueue",
        "/namespaces",
        "/namespace?namespace=default",
        "/cluster",
        "/bulk",
        "/audit",
    )
    forms = (
        ("/topic", {"topic": "graveyard", "action": "purge"}),
        ("/bulk", {"action": "preview", "what": "redrive", "topic": "graveyard"}),
        ("/bulk", {"action": "preview", "what": "redrive"}),
        ("/bulk", {"action": "preview", "what": "redrive", "priority_min": "1", "priority_max": "1"}),
        ("/bulk", {"action": "preview", "what": "cancel", "newer_than": "1s"}),
    )
    texts: dict[str, str] = {}
    for page, form in (*((page, None) for page in pages), *forms):
        answer = browser.get(page) if form is None else browser.submit(page, form)
        assert answer.status == 200, answer.text
        texts[page if form is None else f"{page} {form.get('what', '')}"] = answer.text
    # What needs all topics or items says that it has not read them.
    assert "still being read" in texts["/topics?order=ready"]
    assert "a sample" in texts["/dead"]
    assert "a sample" in texts["/dead?topic=graveyard"]
    assert "still being counted" in texts["/bulk cancel"]


def test_many_items_are_counted_while_the_page_waits(host: LargeHost) -> None:
    browser = Browser(host.console_port)
    page = browser.submit("/bulk", {"action": "preview", "what": "redrive", "priority_min": "1", "priority_max": "1"})
    pages = [page]

    def is_counted() -> bool:
        if "still being counted" in pages[-1].text:
            pages.append(browser.submit("/bulk", hidden_fields(pages[-1], "preview")))
        return "still being counted" not in pages[-1].text

    until(is_counted, "the items are counted", 60.0, 0.5)
    # On a busy machine the count may take longer than a page counts.
    assert "200,000 items match" in pages[-1].text or "too many items to count" in pages[-1].text
    print(f"counted after {len(pages)} pages")


def test_a_ranking_of_all_topics_is_whole_after_a_while(host: LargeHost) -> None:
    browser = Browser(host.console_port)

    def is_whole() -> bool:
        return "topics were read" in browser.get("/topics", order="dead").text

    until(is_whole, "the ranking is whole", 120.0, 1.0)
    page = browser.get("/topics", order="dead")
    assert "graveyard" in page.text
    assert re.search(r"100,\d{3} topics were read", page.text)


def test_calls_are_answered_while_a_ranking_is_read(host: LargeHost) -> None:
    browser = Browser(host.console_port)

    def is_being_read(prefix: str) -> bool:
        return "still being read" in browser.get("/topics", order="ready", prefix=prefix).text

    def is_answered_meanwhile(prefix: str) -> bool:
        return is_being_read(prefix) and bool(put(host, Item("during", b"x"))) and is_being_read(prefix)

    # A reading may end just after the call.
    assert any(map(is_answered_meanwhile, ("t0", "t", "")))
