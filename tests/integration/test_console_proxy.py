"""The console behind nginx, which ends TLS and has it under a path, with the configuration of docs/console.md."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from foqs_client import Client, Item
from tests.integration.test_auth import BOSS
from tests.integration.test_console import GuardedConsole
from tests.integration.test_console_browser import PAGES, PROXY_NAME, SHOWN_MS, browser, tour_of
from tests.support.aio import run
from tests.support.browser_thread import BrowserThread
from tests.support.certificates import Authority
from tests.support.console import OWN_FORM
from tests.support.console import Browser as Console
from tests.support.nginx import nginx
from tests.support.ports import free_port

pytestmark = [pytest.mark.process]

__all__ = ["browser"]

PREFIX = "/foqs"
MANUAL = Path(__file__).parents[2] / "docs" / "console.md"


class ProxiedConsole:
    """A host with a console, and nginx in front of it.

    Attributes:
        url: of the console, for browsers.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._authority = Authority(folder / "ca")
        self._port = free_port()
        self.origin = f"https://{PROXY_NAME}:{self._port}"
        self.url = f"{self.origin}{PREFIX}"
        self.host = GuardedConsole(folder / "guarded", url=f"{self.url}/")

    @contextmanager
    def running(self) -> Iterator[None]:
        with self.host, nginx(self._folder / "nginx", self._server_block()):
            self.host.start()
            yield

    def _server_block(self) -> str:
        """Return the configuration of the manual, with the ports and files of this machine."""
        found = re.search(r"```nginx\n(.*?)```", MANUAL.read_text(), re.DOTALL)
        assert found is not None
        block = found[1]
        signed = self._authority.sign(PROXY_NAME)
        for usual, ours in (
            ("listen 443 ssl", f"listen 127.0.0.1:{self._port} ssl"),
            ("/etc/nginx/tools.example.crt", str(signed.cert)),
            ("/etc/nginx/tools.example.key", str(signed.key)),
            ("127.0.0.1:7413", f"127.0.0.1:{self.host.console_port}"),
        ):
            assert usual in block
            block = block.replace(usual, ours)
        return block

    def console(self) -> Console:
        """Return a browser that sends what a test wants, at nginx."""
        return Console(self._port, ssl.create_default_context(cafile=str(self._authority.file)))

    def put(self, *items: Item) -> list[str]:
        async def enqueue() -> list[str]:
            async with Client(self.host.address, token=BOSS) as client:
                return [result.require() for result in await client.enqueue(items)]

        with ThreadPoolExecutor(1) as other:  # the browser's thread has an event loop
            return other.submit(lambda: run(enqueue())).result()


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxiedConsole]:
    found = ProxiedConsole(tmp_path_factory.mktemp("proxied"))
    with found.running():
        yield found


@contextmanager
def visitor(opened: Browser, proxied: ProxiedConsole, *, with_scripts: bool = True) -> Iterator[Page]:
    """Log in at a page of nginx. Everything that the browser asks for then must be there, and below the prefix."""
    context = opened.new_context(ignore_https_errors=True, java_script_enabled=with_scripts)
    page = context.new_page()
    wrong: list[str] = []
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("response", lambda answer: wrong.append(f"{answer.status} {answer.url}") if answer.status >= 400 else None)
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    page.goto(f"{proxied.url}/topics?prefix=fol")
    assert page.url == f"{proxied.url}/login?next=/topics?prefix%3Dfol"
    log_in(page)
    page.wait_for_url(f"{proxied.url}/topics?prefix=fol")
    yield page
    page.wait_for_load_state()
    assert wrong == []
    assert [each for each in asked if not each.startswith(f"{proxied.url}/")] == []


def log_in(page: Page) -> None:
    page.get_by_label("Token").fill(BOSS)
    page.get_by_role("button", name="Log in").click()


def test_the_tour_works_below_the_path_without_javascript(proxied: ProxiedConsole, browser: BrowserThread) -> None:
    def tour(opened: Browser) -> None:
        with visitor(opened, proxied, with_scripts=False) as page:
            tour_of(page, f"{proxied.url}/")

    browser.run(tour)


def test_every_page_names_only_addresses_below_the_path(proxied: ProxiedConsole, browser: BrowserThread) -> None:
    (item,) = proxied.put(Item("mail", b"x", delay_ms=3_600_000))
    named = """() => ["href", "src", "action", "formaction", "data-stream"].flatMap((name) =>
        [...document.querySelectorAll(`[${name}]`)].map((each) => new URL(each.getAttribute(name), location).href))"""

    def look(opened: Browser) -> None:
        with visitor(opened, proxied) as page:
            for path in PAGES:
                if path == "/nothing":
                    continue
                page.goto(proxied.url + path.format(item=item, dead=item))
                addresses = page.evaluate(named)
                assert len(addresses) > 3
                assert [each for each in addresses if not each.startswith(f"{proxied.url}/")] == [], path

    browser.run(look)


def test_an_open_page_follows_the_queue(proxied: ProxiedConsole, browser: BrowserThread) -> None:
    proxied.put(Item("follow", b"x"))

    def watch(opened: Browser) -> None:
        with visitor(opened, proxied) as page:
            page.goto(f"{proxied.url}/topic?topic=follow")
            page.get_by_text("This page updates itself.").wait_for()
            proxied.put(Item("follow", b"x"))
            expect(page.locator("#live dd").first).to_have_text("2", timeout=SHOWN_MS)

    browser.run(watch)


def test_the_cookie_is_for_tls_and_for_the_path(proxied: ProxiedConsole, browser: BrowserThread) -> None:
    def look(opened: Browser) -> None:
        with visitor(opened, proxied) as page:
            (cookie,) = cookies(page.context, proxied.url)
            assert (cookie["name"], cookie["path"]) == ("__Secure-foqs", f"{PREFIX}/")
            assert (cookie["secure"], cookie["httpOnly"], cookie["sameSite"]) == (True, True, "Strict")
            assert cookies(page.context, f"{proxied.origin}/other/") == []
            page.get_by_role("button", name="Log out").click()
            page.wait_for_url(f"{proxied.url}/login")
            assert cookies(page.context, proxied.url) == []

    browser.run(look)


def cookies(context: BrowserContext, url: str) -> list[dict[str, object]]:
    """Return the cookies that the browser would send to an address."""
    return [dict(each) for each in context.cookies(f"{url}/")]


def test_a_form_comes_from_the_origin_of_the_url(proxied: ProxiedConsole) -> None:
    console = proxied.console()
    accepted = console.post(f"{PREFIX}/login", {"Origin": proxied.origin}, follow=False, token=BOSS)
    assert (accepted.status, accepted.headers["Location"]) == (303, f"{PREFIX}/")
    for origin in ("https://evil.example", PROXY_NAME, f"https://127.0.0.1:{proxied.host.console_port}"):
        refused = console.post(f"{PREFIX}/topic", {"Origin": origin}, topic="x", action="pause")
        assert refused.status == 403
        assert proxied.origin in refused.text
    assert console.post(f"{PREFIX}/topic", {"Sec-Fetch-Site": "same-site"}, topic="x", action="pause").status == 403
    assert "is paused" in console.post(f"{PREFIX}/topic", {"Origin": proxied.origin}, topic="x", action="pause").text


def test_the_audit_names_the_proxy_and_the_address_that_it_gives(proxied: ProxiedConsole) -> None:
    console = proxied.console()
    console.post(f"{PREFIX}/login", token=BOSS)
    forged = {**OWN_FORM, "X-Forwarded-For": "198.51.100.1"}
    console.post(f"{PREFIX}/topic", forged, topic="audited", action="pause")
    page = console.get(f"{PREFIX}/audit").text
    assert "boss console 127.0.0.1 for 127.0.0.1" in page
    assert "198.51.100.1" not in page


def test_the_host_says_where_browsers_find_the_console(proxied: ProxiedConsole) -> None:
    index = proxied.host.get("/")
    assert index is not None
    assert f"The console is at {proxied.url}/." in index[1]
    assert f'"console": "{proxied.url}/"' in proxied.host.log


def test_without_the_path_the_console_says_where_it_is(proxied: ProxiedConsole) -> None:
    direct = Console(proxied.host.console_port)
    assert direct.get(PREFIX).headers["Location"] == f"{PREFIX}/"
    for path in ("/", "/topics", "/static/console.css", f"{PREFIX}x/"):
        answer = direct.get(path)
        assert answer.status == 404
        assert f"The console is at {PREFIX}/" in answer.text
