"""The console in a real browser: every page by keyboard and without JavaScript, checked for accessibility."""

from __future__ import annotations

import contextlib
import shutil
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Error, Page, Request, expect

from foqs_client import Item, TopicPolicy
from tests.integration.test_console import OpenHost, calls, kill_items, put
from tests.support.browser_thread import CALL_S, BrowserHangs, BrowserThread
from tests.support.console import Browser as Console
from tests.support.console import unique
from tests.support.event_stream import EventStream
from tests.support.poll import until

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

SHOWN_MS = 30_000
PROXY_NAME = "tools.example"
"""A name of this machine, for the browser only."""
PAGE_BYTES_MAX = 120_000
PAGES = (
    "/",
    "/topics?state=any",
    "/topics?order=dead",
    "/topic?topic=mail",
    "/topic?topic=mail&state=deferred&unit=minute",
    "/topic?topic=absent",
    "/groups?topic=mail",
    "/groups?topic=turns",
    "/item?id={item}",
    "/item?id={dead}",
    "/dead",
    "/bulk",
    "/enqueue",
    "/namespaces",
    "/namespace?namespace=default",
    "/cluster",
    "/audit",
    "/login",
    "/nothing",
)
WIDTHS = (320, 390, 1_280)
"""Of two phones and a desk."""
HEIGHT = 800
FAULTS_OF_LAYOUT = r"""() => {
    const root = document.documentElement;
    const faults = root.scrollWidth > root.clientWidth ? [`it is ${root.scrollWidth} wide`] : [];
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
        for (const word of texts.currentNode.data.matchAll(/(?<![A-Za-z0-9_])[A-Za-z0-9_]{2,10}(?![A-Za-z0-9_])/g)) {
            const range = document.createRange();
            range.setStart(texts.currentNode, word.index);
            range.setEnd(texts.currentNode, word.index + word[0].length);
            if (new Set([...range.getClientRects()].map((each) => each.top)).size > 1) faults.push(word[0]);
        }
    }
    return faults.slice(0, 5);
}"""
"""Returns whether a page is wider than the window, and the short words that have a line end in them."""
FORMS = (
    ("/topic?topic=mail", "Purge ..."),
    ("/topic?topic=mail", "Pause", "Resume"),
    ("/dead", "Redrive all that match ..."),
    ("/dead", "Redrive the chosen"),
    ("/bulk?topic=long&what=cancel&rate=1", "Count and preview", "Go", "Interrupt", "Cancel ..."),
    ("/bulk?what=move", "Count and preview"),
)
"""Pages that answer a form: the page of the form, and the buttons to press."""


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenHost]:
    with OpenHost(tmp_path_factory.mktemp("browser") / "host") as found:
        found.start()
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[BrowserThread]:
    program = shutil.which("chromium")
    assert program is not None, "chromium is missing: make system-packages installs it"
    with BrowserThread(program, [f"--host-resolver-rules=MAP {PROXY_NAME} 127.0.0.1"]) as found:
        yield found


def test_a_call_that_does_not_end_is_named_with_its_page_and_the_next_test_gets_a_new_browser(
    browser: BrowserThread,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        slow = f"http://127.0.0.1:{silent.getsockname()[1]}/slow"

        def shorten(request: Request) -> None:
            assert request.url == slow
            browser.call_s = 1

        def hang(opened: Browser) -> None:
            page = opened.new_page()
            page.goto("data:text/html,stuck")
            page.on("request", shorten)  # a slow browser may need longer to send it
            page.goto(slow, timeout=0)

        with pytest.raises(BrowserHangs) as caught:
            browser.run(hang)
    browser.call_s = CALL_S
    call, pages, requests = str(caught.value).splitlines()
    assert call.startswith("Page.goto did not end in 1 s: test_console_browser.py:")
    assert call.endswith(", page.goto(slow, timeout=0)")
    assert (pages, requests) == ("open pages: data:text/html,stuck", f"unfinished requests: {slow}")
    assert browser.run(lambda opened: opened.version)


def test_page_that_has_crashed_hides_no_error_of_the_work_and_is_closed(browser: BrowserThread) -> None:
    def crash(opened: Browser) -> None:
        page = opened.new_page()
        opened.new_page()
        with page.expect_event("crash"), contextlib.suppress(Error):
            page.goto("chrome://crash")
        raise ValueError("the work has failed")

    with pytest.raises(ValueError, match="the work has failed"):
        browser.run(crash)
    assert browser.run(lambda opened: opened.contexts) == []


def url(host: OpenHost, path: str = "/") -> str:
    return f"http://localhost:{host.console_port}{path}"


@pytest.mark.parametrize(
    ("scheme", "width"),
    [
        ("light", WIDTHS[0]),
        # Colours depend on the scheme, and places on the width.
        pytest.param("dark", WIDTHS[-1], marks=pytest.mark.long),
        pytest.param("light", WIDTHS[-1], marks=pytest.mark.long),
        pytest.param("dark", WIDTHS[0], marks=pytest.mark.long),
    ],
)
def test_no_page_has_a_fault_of_accessibility(host: OpenHost, browser: BrowserThread, scheme: str, width: int) -> None:
    paths = filled_pages(host)

    def check(opened: Browser) -> list[tuple[str, str, list[str]]]:
        context = opened.new_context(
            color_scheme="dark" if scheme == "dark" else "light",
            bypass_csp=True,
            viewport={"width": width, "height": HEIGHT},
        )
        found = []

        def look(page: Page, name: str) -> None:
            for violation in Axe().run(page).response["violations"]:
                found.append((name, violation["id"], [node["html"] for node in violation["nodes"]][:2]))

        walk(context.new_page(), host, paths, look)
        return found

    assert browser.run(check) == []


def test_no_page_scrolls_sideways_and_no_word_is_broken(host: OpenHost, browser: BrowserThread) -> None:
    paths = filled_pages(host)

    def check(opened: Browser) -> list[tuple[str, int, list[str]]]:
        page = opened.new_page()
        found = []

        def look(page: Page, name: str) -> None:
            for width in WIDTHS:
                page.set_viewport_size({"width": width, "height": HEIGHT})
                faults = page.evaluate(FAULTS_OF_LAYOUT)
                if faults:
                    found.append((name, width, faults))
            page.set_viewport_size({"width": WIDTHS[0], "height": HEIGHT})

        walk(page, host, paths, look)
        return found

    assert browser.run(check) == []


def filled_pages(host: OpenHost) -> list[str]:
    """Return the pages of a host that has items of each kind, with long names and errors."""
    (item,) = put(host, Item("mail", b"payload", metadata=b"meta" * 250, delay_ms=3_600_000))
    put(host, *[Item("mail", b"x")] * 3, *[Item("a-long-name." * 20, b"x")] * 2)
    put(host, *[Item("long", b"x")] * 300)  # a job that changes one a second is still running when it is interrupted
    calls(host, lambda client: client.set_topic_policy(TopicPolicy("turns", 1, "items", {"a-long-name." * 20: 3})))
    put(host, *[Item("turns", group=name) for name in ("a-long-name." * 20, "ada", "ada")])
    calls(host, lambda client: client.dequeue({"turns": 2}, wait_ms=5_000))
    (dead,) = kill_items(host, "sad", 1, b"failed: ConnectionRefusedError: [Errno 111] Connect call failed")
    return [path.format(item=item, dead=dead) for path in PAGES]


def walk(page: Page, host: OpenHost, paths: Sequence[str], look: Callable[[Page, str], None]) -> None:
    """Look at each page, with all that can be unfolded, and at those that answer a form."""

    def look_at_all(name: str) -> None:
        page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        look(page, name)

    for path in paths:
        page.goto(url(host, path))
        look_at_all(path)
    for path, *buttons in FORMS:
        page.goto(url(host, path))
        for button in buttons:
            with page.expect_navigation():
                page.get_by_role("button", name=button, exact=True).click()
            look_at_all(f"{path}, {button}")


def test_pages_load_nothing_from_elsewhere_and_break_no_policy(host: OpenHost, browser: BrowserThread) -> None:
    requested: list[str] = []
    complaints: list[str] = []

    def visit(opened: Browser) -> None:
        page = opened.new_page()
        page.on("request", lambda request: requested.append(request.url))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        for path in ("/", "/topics", "/topic?topic=mail", "/enqueue", "/cluster"):
            page.goto(url(host, path))
            if page.locator("#live").count():
                page.get_by_text("This page updates itself.").wait_for()

    browser.run(visit)
    assert all(each.startswith(url(host)) for each in requested)
    assert complaints == []


@pytest.mark.parametrize("path", ["/", "/topics", "/topic?topic=small-7", "/cluster"])
def test_a_page_with_all_that_it_loads_is_small(host: OpenHost, browser: BrowserThread, path: str) -> None:
    put(host, *[Item(f"small-{number}", b"x") for number in range(100)])

    def load(opened: Browser) -> int:
        page = opened.new_page()
        finished: list[Request] = []
        page.on("requestfinished", lambda request: finished.append(request))
        page.goto(url(host, path))
        page.get_by_text("This page updates itself.").wait_for()
        assert len(finished) >= 5
        return sum(request.sizes()["responseBodySize"] for request in finished)

    assert browser.run(load) < PAGE_BYTES_MAX


def test_an_open_page_follows_the_queue_and_can_be_paused(host: OpenHost, browser: BrowserThread) -> None:
    put(host, Item("follow", b"x"))

    def watch(opened: Browser) -> None:
        page = opened.new_page()
        page.goto(url(host, "/topic?topic=follow"))
        ready = page.locator("#live dd").first
        assert ready.inner_text() == "1"
        put_meanwhile(host, Item("follow", b"x"))
        expect(ready).to_have_text("2", timeout=SHOWN_MS)
        assert page.locator(".chart canvas").count() == 3
        _press_button(page, "Pause updates", navigates=False)
        page.get_by_text("Updates are paused.").wait_for()
        put_meanwhile(host, Item("follow", b"x"))
        # A stream that was not closed would have sent the third item within a second or two.
        with EventStream(Console(host.console_port), "/topic?topic=follow") as stream:
            for _ in range(3):
                stream.next("point")
        assert ready.inner_text() == "2"
        page.keyboard.press("Enter")
        expect(ready).to_have_text("3", timeout=SHOWN_MS)

    browser.run(watch)


def test_a_table_with_the_focus_is_updated(host: OpenHost, browser: BrowserThread) -> None:
    """A click on a table gives it the focus, so that the keyboard can scroll it."""
    name = unique("focused-table")
    put(host, Item("busy", b"x"))

    def watch(opened: Browser) -> None:
        page = opened.new_page()
        page.goto(url(host))
        expect(page.locator("#live")).not_to_contain_text(name)
        page.locator("#live").get_by_role("group").click(position={"x": 2, "y": 2})
        assert page.locator(":focus").get_attribute("role") == "group"
        put_meanwhile(host, *[Item(name, b"x")] * 400)
        expect(page.locator("#live")).to_contain_text(name, timeout=SHOWN_MS)

    browser.run(watch)


def put_meanwhile(host: OpenHost, *items: Item) -> None:
    """Enqueue items in another thread, because the browser's has an event loop."""
    with ThreadPoolExecutor(1) as other:
        other.submit(put, host, *items).result()


KEEP_LISTS = """() => {
    window.lists = [];
    const add = EventSource.prototype.addEventListener;
    EventSource.prototype.addEventListener = function (name, listener) {
        add.call(this, name, (event) => {
            listener(event);
            if (name === "live") window.lists.push(event.data);
        });
    };
}"""
"""Lets a page keep the lists that it has got from its stream, after it has decided whether to show them."""


def open_list(opened: Browser, host: OpenHost, prefix: str) -> Page:
    """Open the list of the topics with this prefix, which keeps what it gets."""
    page = opened.new_page()
    page.add_init_script(f"({KEEP_LISTS})()")
    page.goto(url(host, f"/topics?prefix={prefix}"))
    return page


def send_longer_list(host: OpenHost, page: Page, name: str) -> None:
    """Add a topic, and return when the page has got a list that has it."""
    put_meanwhile(host, Item(name, b"x"))
    until(lambda: bool(page.evaluate("name => lists.some((each) => each.includes(name))", name)), f"it has got {name}")


def test_what_has_the_focus_stays_until_the_focus_leaves(host: OpenHost, browser: BrowserThread) -> None:
    put(host, Item("focus-1", b"x"))

    def watch(opened: Browser) -> None:
        page = open_list(opened, host, "focus")
        page.get_by_role("button", name="Pause focus-1").focus()
        send_longer_list(host, page, "focus-0")
        assert page.get_by_role("button", name="Pause focus-0").count() == 0
        page.locator("#prefix").focus()
        page.get_by_role("button", name="Pause focus-0").wait_for()

    browser.run(watch)


def test_what_the_pointer_is_on_stays_until_it_leaves(host: OpenHost, browser: BrowserThread) -> None:
    put(host, Item("point-1", b"x"))

    def watch(opened: Browser) -> None:
        page = open_list(opened, host, "point")
        page.get_by_role("button", name="Pause point-1").hover()
        send_longer_list(host, page, "point-0")
        page.locator("#pause").focus()
        page.keyboard.press("Enter")
        page.get_by_text("Updates are paused.").wait_for()  # nothing more comes that could show the list
        assert page.get_by_role("button", name="Pause point-0").count() == 0
        page.mouse.move(0, 0)
        page.get_by_role("button", name="Pause point-0").wait_for()

    browser.run(watch)


def test_charts_follow_the_colours_of_the_system(host: OpenHost, browser: BrowserThread) -> None:
    def look(opened: Browser) -> None:
        page = opened.new_page(color_scheme="light")
        page.goto(url(host))
        page.locator(".chart canvas").first.wait_for()
        page.emulate_media(color_scheme="dark")
        page.locator(".chart canvas").first.wait_for()
        assert page.locator(".chart canvas").count() == 2

    browser.run(look)


def test_the_tour_works_by_keyboard_and_without_javascript(host: OpenHost, browser: BrowserThread) -> None:
    """Enqueue a delayed item, find it by its id, deliver it now, pause its topic, purge it."""

    def tour(opened: Browser) -> None:
        context = opened.new_context(java_script_enabled=False)
        tour_of(context.new_page(), url(host))

    browser.run(tour)


def test_a_lease_is_extended_by_keyboard_and_without_javascript(host: OpenHost, browser: BrowserThread) -> None:
    (item_id,) = put(host, Item("keyed", lease_ms=3_600_000))
    calls(host, lambda client: client.dequeue({"keyed": 1}, lease_ms=600_000, wait_ms=5_000))

    def extend(opened: Browser) -> None:
        context = opened.new_context(java_script_enabled=False)
        page = context.new_page()
        page.goto(url(host, f"/item?id={item_id}"))
        _type(page, "Lease from now on", "2h")
        page.keyboard.press("Enter")
        page.wait_for_url("**/item?*done=extended*")
        assert "The lease is extended" in page.inner_text("main")
        assert "2.0h" in page.inner_text("table.fields")
        _press_button(page, "Extend")
        assert "The lease is extended" in page.inner_text("main")

    browser.run(extend)
    left_ms = calls(host, lambda client: client.item(item_id)).lease_remaining_ms
    assert left_ms is not None
    assert 7_000_000 < left_ms <= 7_200_000


def test_a_stranger_finds_out_why_an_item_waits_and_mends_it(host: OpenHost, browser: BrowserThread) -> None:
    put(host, Item("invoices", b"of ann"))
    calls(host, lambda client: client.pause_topic("invoices"))

    def find(opened: Browser) -> None:
        page = opened.new_page()
        page.goto(url(host))
        page.get_by_role("link", name="Topics", exact=True).click()
        page.get_by_role("link", name="invoices").click()
        page.locator("td a[href^='/item']").click()
        expect(page.locator("main")).to_contain_text("Its topic is paused", timeout=SHOWN_MS)
        page.get_by_role("button", name="Resume the topic").click()
        expect(page.locator("main")).to_contain_text("The topic is delivered again", timeout=SHOWN_MS)

    browser.run(find)
    (delivery,) = calls(host, lambda client: client.dequeue({"invoices": 1}, wait_ms=5_000))
    assert delivery.payload == b"of ann"


def tour_of(page: Page, address: str) -> None:
    page.goto(address)
    _press_link(page, "Enqueue")
    _type(page, "Topic", "tour")
    _type(page, "Payload", "by keyboard")
    _type(page, "Deliver after", "1h")
    page.keyboard.press("Enter")
    page.wait_for_url("**/item?*")
    assert "The item is enqueued" in page.inner_text("main")
    assert "It is deferred until" in page.inner_text("main")
    item_id = page.inner_text("h1").removeprefix("Item ")
    _press_link(page, "Overview")
    _type(page, "Item", item_id)
    page.keyboard.press("Enter")
    page.wait_for_url("**/item?*")
    _press_button(page, "Deliver now")
    assert "ready" in page.inner_text("table.fields")
    _press_link(page, "tour")
    _press_button(page, "Pause")
    assert "The topic is paused" in page.inner_text("main")
    _press_button(page, "Purge ...")
    assert "1 at the moment" in page.inner_text("main")
    _press_button(page, "Delete all items")
    assert "1 item was deleted" in page.inner_text("main")


def _tab_to(page: Page, role: str, name: str) -> None:
    """Press Tab until the element of this role and name has the focus."""
    wanted = page.get_by_role(role, name=name, exact=True).first  # type: ignore[arg-type]
    handle = wanted.element_handle()
    for _ in range(80):
        page.keyboard.press("Tab")
        if page.locator(":focus").element_handle() is not None and page.evaluate(
            "wanted => wanted === document.activeElement", handle
        ):
            return
    raise AssertionError(f"the keyboard does not reach the {role} {name!r}")


def _press_link(page: Page, name: str) -> None:
    _tab_to(page, "link", name)
    with page.expect_navigation():
        page.keyboard.press("Enter")


def _press_button(page: Page, name: str, *, navigates: bool = True) -> None:
    _tab_to(page, "button", name)
    with page.expect_navigation() if navigates else contextlib.nullcontext():
        page.keyboard.press("Enter")


def _type(page: Page, label: str, text: str) -> None:
    _tab_to(page, "textbox", label)
    page.keyboard.type(text)
