"""The figures of the console's pages: they are those of the command line, and estimates have a sign."""

from __future__ import annotations

import gzip
import http.client
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from foqs_client import Client, Item, RestoredItem, Topic
from tests.integration.test_console import OpenHost, calls, kill_items, put
from tests.support.console import Answer, Browser
from tests.support.poll import until

pytestmark = [pytest.mark.process]

HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenHost]:
    with OpenHost(tmp_path_factory.mktemp("figures") / "host") as found:
        found.start()
        yield found


@pytest.fixture
def browser(host: OpenHost) -> Browser:
    return Browser(host.console_port)


def all_topics(host: OpenHost) -> list[Topic]:
    states = ["ready", "leased", "deferred", "dead"]
    found: list[Topic] = calls(host, lambda client: client.topics(states=states, limit=1_000)).topics
    return found


def topic_page(browser: Browser, topic: str, unit: str = "hour") -> Answer:
    """Return the page of a topic. A page does not wait for a long read; the next one has it."""
    pages: list[Answer] = []

    def is_read() -> bool:
        pages.append(browser.get("/topic", topic=topic, unit=unit))
        return "still being read" not in pages[-1].text

    until(is_read, f"{topic} is read")
    return pages[-1]


def names_in(body: str) -> list[str]:
    """Return the topics of a list, in order."""
    return re.findall(r'<td class="name"><a href="/topic\?[^"]*">([^<]*)</a>', body)


def test_the_overview_counts_what_the_topics_add_up_to(host: OpenHost, browser: Browser) -> None:
    put(host, *[Item("sum-a", b"x")] * 7, *[Item("sum-b", b"x", delay_ms=HOUR_MS)] * 3)
    kill_items(host, "sum-c", 2)
    topics = all_topics(host)
    expected = " ".join(
        f"{state} {sum(getattr(topic, state) for topic in topics):,}"
        for state in ("ready", "leased", "deferred", "dead")
    )
    # The totals are collected once a second.
    until(lambda: expected in browser.get("/").text, f"the overview shows {expected}")
    page = browser.get("/")
    assert "No problem found" in page.text
    assert "all closed" in page.text
    assert "oldest ready item" in page.text
    assert "became ready, per second" in page.text
    assert "Work as a table" in page.text


def test_the_overview_lists_the_busiest_topics(host: OpenHost, browser: Browser) -> None:
    put(host, *[Item("busy-most", b"x")] * 400, *[Item("busy-less", b"x")] * 200)
    page = browser.get("/")
    listed = [name for name in names_in(page.body) if name.startswith("busy-")]  # other tests have topics too
    assert listed == ["busy-most", "busy-less"]
    assert re.search(r"busy-most default ~ [0-9.]+ ~ 0", page.text)


@pytest.fixture(scope="module")
def many(host: OpenHost) -> Iterator[None]:
    """Topics with different numbers of ready and dead items, and of ages."""

    now_ms = round(time.time() * 1_000)

    async def fill(client: Client) -> None:
        for number in range(30):
            ready_at_ms = now_ms - (number + 1) * 60_000
            await client.restore(
                [
                    RestoredItem(f"rank-{number:02}", b"x", deliver_after_ms=ready_at_ms, restore_key=f"{number}-{n}")
                    for n in range(number + 1)
                ]
            )

    calls(host, fill)
    for number in (3, 1, 2):
        kill_items(host, f"rank-dead-{number}", number)
    yield


@pytest.mark.usefixtures("many")
def test_topics_are_sorted_by_ready_items_age_and_dead_items(host: OpenHost, browser: Browser) -> None:
    by_ready = names_in(browser.get("/topics", prefix="rank-", order="ready").body)
    assert by_ready[:3] == ["rank-29", "rank-28", "rank-27"]
    assert len(by_ready) == 30
    by_age = names_in(browser.get("/topics", prefix="rank-", order="age").body)
    assert by_age[:3] == ["rank-29", "rank-28", "rank-27"]
    by_dead = names_in(browser.get("/topics", prefix="rank-", order="dead").body)
    assert by_dead == ["rank-dead-3", "rank-dead-2", "rank-dead-1"]
    with_dead = names_in(browser.get("/topics", prefix="rank-", state="dead").body)
    assert with_dead == ["rank-dead-1", "rank-dead-2", "rank-dead-3"]
    ranked = browser.get("/topics", prefix="rank-", order="ready")
    (first,) = [topic for topic in all_topics(host) if topic.topic == "rank-29"]
    assert f"rank-29 {first.ready} {first.leased} {first.deferred} {first.dead}" in ranked.text
    assert "30 topics were read" in ranked.text


def test_a_list_says_what_it_leaves_out_and_a_topic_opens_on_what_it_has(host: OpenHost, browser: Browser) -> None:
    kill_items(host, "left-out-dead", 2)
    put(host, Item("left-out-later", b"x", delay_ms=HOUR_MS))
    for order in ("name", "ready"):
        page = browser.get("/topics", prefix="left-out-", order=order)
        assert "2 topics have only deferred or dead items, and are not listed" in page.text
        assert names_in(page.body) == []
    assert "are not listed" not in browser.get("/topics", prefix="left-out-", state="any").text
    assert "Items that are dead" in browser.get("/topic", topic="left-out-dead").text
    assert "Items that are deferred" in browser.get("/topic", topic="left-out-later").text
    assert "No item of the topic is ready" in browser.get("/topic", topic="left-out-dead", state="ready").text


def test_wrong_choices_of_the_list_name_their_field(browser: Browser) -> None:
    assert (
        "order: 'size' cannot be chosen; use one of name, ready, age, dead" in browser.get("/topics", order="size").text
    )
    assert "state: 'odd' cannot be chosen; use one of" in browser.get("/topics", state="odd").text
    assert "cursor: 'x' is not a whole number" in browser.get("/topics", order="ready", cursor="x").text
    assert browser.get("/topics", order="ready", cursor="-5").status == 200


def test_a_topic_is_paused_and_purged_in_the_list(host: OpenHost, browser: Browser) -> None:
    put(host, *[Item("act-on-me", b"x")] * 4)
    place: dict[str, Any] = {
        "topic": "act-on-me",
        "from": "topics",
        "prefix": "act",
        "order": "ready",
        "state": "active",
    }
    paused = browser.post("/topic", action="pause", **place)
    assert "The topic is paused" in paused.text
    assert "<h1>Topics</h1>" in paused.body
    assert 'value="resume"' in paused.body
    assert calls(host, lambda client: client.dequeue({"act-on-me": 1})) == []
    asked = browser.post("/topic", action="purge", **place)
    assert "4 at the moment" in asked.text
    back = asked.body.replace("&amp;", "&")
    assert "/topics?namespace=default&prefix=act&order=ready&state=active" in back
    done = browser.post("/topic", action="purge", confirmed="1", **place)
    assert "4 items were deleted" in done.text
    assert "<h1>Topics</h1>" in done.body
    browser.post("/topic", action="resume", **place)


def test_a_topic_shows_its_line_by_priority_and_age(host: OpenHost, browser: Browser) -> None:
    put(host, *[Item("line", b"x", priority=-2)] * 5, *[Item("line", b"x", priority=7)] * 2)
    page = topic_page(browser, "line")
    assert re.search(r"Ready items by priority .* -2 5 7 2 ", page.text)
    assert re.search(r"Ready items by age .*less than 1s \d", page.text)
    assert "Only the best items were read" not in page.text
    assert "How well the order was kept" not in page.text
    assert "payload_bytes_max 10,240" in page.text


def test_a_long_line_has_signs(host: OpenHost, browser: Browser) -> None:
    async def fill(client: Client) -> None:
        for _ in range(6):
            await client.enqueue([Item("long-line", b"x")] * 500)

    calls(host, fill)
    page = topic_page(browser, "long-line")
    assert "Only the best items were read" in page.text
    assert re.search(r"Ready items by priority .* 0 ≥2,000 all others ~1,000 ", page.text)


def test_the_calendar_counts_what_comes_due(host: OpenHost, browser: Browser) -> None:
    put(host, *[Item("due", b"x", delay_ms=50 * 24 * HOUR_MS)] * 3, *[Item("due", b"x", delay_ms=2 * HOUR_MS)] * 4)
    by_hour = topic_page(browser, "due", "hour")
    counts = [int(count) for count in re.findall(r"\w{3} \d\d:00 (\d+) ", by_hour.text)]
    assert (len(counts), sum(counts), counts[2]) == (24, 4, 4)
    assert "later 3" in by_hour.text
    by_month = topic_page(browser, "due", "month")
    months = [int(count) for count in re.findall(r"[A-Z][a-z]+ \d{4} (\d+) ", by_month.text)]
    assert (len(months), sum(months)) == (12, 7)
    for unit in ("minute", "day"):
        assert browser.get("/topic", topic="due", unit=unit).status == 200
    assert (
        "unit: 'year' cannot be chosen; use one of minute, hour, day, month"
        in browser.get("/topic", topic="due", unit="year").text
    )


def test_a_calendar_of_many_items_is_an_estimate(host: OpenHost, browser: Browser) -> None:
    async def fill(client: Client) -> None:
        for number in range(10):
            delays = [HOUR_MS + 20 * HOUR_MS * n // 500 for n in range(500)]
            await client.enqueue([Item("estimate", b"x", delay_ms=delay + number) for delay in delays])

    calls(host, fill)
    text = topic_page(browser, "estimate").text
    counts = [int(count.replace(",", "")) for count in re.findall(r"\w{3} \d\d:00 ~?([\d,]+) ", text)]
    assert "~ means estimated" in text
    assert sum(counts) == pytest.approx(5_000, rel=0.3)
    assert all(150 <= count <= 400 for count in counts[3:18])


def test_the_order_meter_is_on_the_page_of_a_topic(host: OpenHost, browser: Browser) -> None:
    put(host, *[Item("metered", b"x")] * 5)

    async def drain(client: Client) -> None:
        found = await client.dequeue({"metered": 5})
        await client.ack(found)

    calls(host, drain)
    page = browser.get("/topic", topic="metered")
    assert "~ 0 % of the items that this host delivered in the last ten minutes" in page.text
    assert "Better items ~0 ~0" in page.text
    assert re.search(r"acked, per second ~ 0\.\d", page.text)


def test_large_answers_are_compressed_for_browsers_that_accept_it(host: OpenHost, browser: Browser) -> None:
    for path in ("/bulk", "/static/console.css"):
        plain = browser.get(path)
        assert "Content-Encoding" not in plain.headers
        connection = http.client.HTTPConnection("127.0.0.1", host.console_port, timeout=30)
        connection.request("GET", path, headers={"Accept-Encoding": "gzip, deflate"})
        reply = connection.getresponse()
        packed = reply.read()
        connection.close()
        assert (reply.headers["Content-Encoding"], reply.headers["Vary"]) == ("gzip", "Accept-Encoding")
        assert len(packed) < len(plain.body) * 0.6
        assert gzip.decompress(packed).decode() == plain.body


def test_what_a_browser_keeps_has_its_version_in_its_address(browser: Browser) -> None:
    page = browser.get("/")
    addresses = re.findall(r'(?:src|href)="(/static/[^"]+)"', page.body)
    assert len(addresses) == 6
    for address in addresses:
        answer = browser.get(address)
        assert answer.status == 200
        assert "immutable" in answer.headers["Cache-Control"]
    assert browser.get("/static/console.css").headers["Cache-Control"] == "no-store"
    assert browser.get("/static/console.css?v=0").headers["Cache-Control"] == "no-store"
