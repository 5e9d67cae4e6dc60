"""Open pages of real hosts: their event streams, who may have one, and what they cost."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from foqs_client import Client, Item, Namespace
from perf.lib.machine import cpu_s
from tests.integration.test_auth import ORDERS
from tests.integration.test_console import GuardedConsole, OpenHost, calls, logged_in, put
from tests.support.console import Browser, unique
from tests.support.event_stream import EventStream
from tests.support.poll import until

pytestmark = [pytest.mark.process]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenHost]:
    with OpenHost(tmp_path_factory.mktemp("live") / "host") as found:
        found.start()
        yield found


@pytest.fixture
def own_host(tmp_path: Path) -> Iterator[OpenHost]:
    """A host of one test, which fills or stops it."""
    with OpenHost(tmp_path / "host") as found:
        found.start()
        yield found


@pytest.fixture
def browser(host: OpenHost) -> Browser:
    return Browser(host.console_port)


def test_the_part_of_a_page_is_sent_when_it_changes(host: OpenHost, browser: Browser) -> None:
    name = unique("watched")
    put(host, Item(name, b"x"))
    with EventStream(browser, f"/topic?topic={name}") as stream:
        assert (stream.status, stream.headers.get_content_type()) == (200, "text/event-stream")
        assert "frame-ancestors 'none'" in stream.headers["Content-Security-Policy"]
        assert stream.headers["X-Accel-Buffering"] == "no"
        assert "<dd>1</dd>" in (stream.next("live") or "")
        put(host, *[Item(name, b"x")] * 2)
        until(lambda: "<dd>3</dd>" in (stream.next("live") or ""), "the page shows three items")
        point = json.loads(stream.next("point") or "")
        assert point[1:5] == [3, 0, 0, 0]


@pytest.mark.parametrize("page", ["/", "/topics?order=ready", "/topics?prefix=live-page", "/cluster"])
def test_each_live_page_has_a_stream_of_what_it_shows(host: OpenHost, browser: Browser, page: str) -> None:
    put(host, Item("live-page", b"x"))
    whole = browser.get(page)
    assert 'id="live"' in whole.body
    with EventStream(browser, page) as stream:
        part = stream.next("live")
    assert part is not None
    assert part.count("<table") == whole.body.count("<table") - whole.body.count("<details") - (page == "/")


def test_another_site_gets_no_stream(browser: Browser) -> None:
    assert browser.get("/stream?page=/", {"Sec-Fetch-Site": "cross-site"}).status == 403


def test_other_pages_have_no_stream(browser: Browser) -> None:
    for page in ("/enqueue", "/nothing", ""):
        with EventStream(browser, page) as stream:
            assert stream.status == 404
    assert browser.send("POST", "/stream?page=/", b"", {"Sec-Fetch-Site": "same-origin"}).status == 405
    assert 'id="live"' not in browser.get("/enqueue").body


def test_a_topic_with_line_ends_in_its_name_sends_no_event_of_its_own(host: OpenHost, browser: Browser) -> None:
    name = "a\r\revent: point\rdata: [9,9]\r\r"
    put(host, Item(name, b"x"))
    with EventStream(browser, "/topics?prefix=a%0D") as stream:
        part = stream.next("live")
    assert part is not None
    assert "event: point" in part


def test_a_page_about_nothing_says_why(browser: Browser) -> None:
    with EventStream(browser, "/topics?namespace=absent") as stream:
        assert "absent" in (stream.next("problem") or "")


def test_pages_of_all_namespaces_are_kept_up_to_date(host: OpenHost, browser: Browser) -> None:
    name = unique("shop")
    calls(host, lambda client: client.create_namespace(Namespace(name)))
    with EventStream(browser, f"/topic?namespace={name}&topic=t") as shop, EventStream(browser, "/") as overview:
        assert (shop.status, overview.status) == (200, 200)
        put(host, *[Item("t", b"x")] * 3, namespace=name)
        until(lambda: "<dd>3</dd>" in (shop.next("live") or ""), "the page of the namespace shows its items")
        assert overview.next("point") is not None


def test_a_host_with_open_pages_stops_in_time(own_host: OpenHost) -> None:
    with EventStream(Browser(own_host.console_port), "/") as stream:
        assert stream.next("live") is not None
        assert own_host.stop() == 0
        while stream.next("live") is not None:
            pass  # what was sent before the stop; the stream ends by it


def test_streams_follow_the_rights_of_their_principal(tmp_path: Path) -> None:
    with GuardedConsole(tmp_path / "guarded") as host:
        host.start()
        with EventStream(Browser(host.console_port), "/") as stream:
            assert stream.status == 401
        orders, _ = logged_in(host.console_port, ORDERS)
        assert 'id="live"' not in orders.get("/").body  # it is no administrator
        with EventStream(orders, "/cluster") as stream:
            assert stream.next("problem")
        with EventStream(orders, "/topics?namespace=orders") as stream:
            host.orders.write_text("another-secret-of-orders")
            host.read_again("tokens and certificates were read again")
            assert stream.next("nothing") is None  # the session is over, so the stream ends
        host.check_log()


@pytest.mark.long
def test_ten_open_pages_cost_at_most_a_twentieth_of_a_core(own_host: OpenHost) -> None:
    host, browser = own_host, Browser(own_host.console_port)

    async def fill(client: Client) -> None:
        for start in range(0, 2_000, 500):
            await client.enqueue([Item(f"cost-{start + n}", b"x") for n in range(500)])

    calls(host, fill)
    pages = [
        *("/", "/", "/cluster", "/topics", "/topics?order=ready", "/topics?order=age", "/topics?prefix=cost-1"),
        *(f"/topic?topic=cost-{number}" for number in range(3)),
    ]

    def share() -> float:
        """Return the part of a core that the host takes, from a round of its console to one at least 20 s later."""
        with EventStream(browser, "/") as rounds:
            assert rounds.next("point") is not None
            started_s, before_s = time.monotonic(), cpu_s(host.pid)
            while time.monotonic() - started_s < 20:
                assert rounds.next("point") is not None
            return (cpu_s(host.pid) - before_s) / (time.monotonic() - started_s)

    one = share()
    streams = [EventStream(browser, page) for page in pages]
    try:
        for stream in streams:
            assert stream.next("live") is not None
        eleven = share()
    finally:
        for stream in streams:
            stream.close()
    print(f"one page: {100 * one:.2f} % of a core; ten more: {100 * (eleven - one):.2f} %")
    assert eleven - one <= 0.05


def test_a_browser_that_leaves_is_forgotten(own_host: OpenHost) -> None:
    browser = Browser(own_host.console_port)
    for _ in range(150):  # more than may be open
        EventStream(browser, "/").close()

    def is_open() -> bool:
        with EventStream(browser, "/") as stream:
            return stream.status == 200

    until(is_open, "there is room for another page")
