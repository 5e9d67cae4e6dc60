"""The pictures of docs/console.md, of a queue at work: `make pictures` writes them there."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from playwright.sync_api import Browser

from foqs_client import Client, Delivery, Item, Nack
from tests.integration.test_console import OpenHost, calls
from tests.integration.test_console_browser import browser, url
from tests.support.browser_thread import BrowserThread
from tests.support.console import Browser as Console
from tests.support.event_stream import EventStream

pytestmark = [pytest.mark.process, pytest.mark.long, pytest.mark.timeout(400)]

__all__ = ["browser"]

PICTURES = "FOQS_PICTURES"
"""The variable that names the folder of the pictures; else they are written to a temporary one."""
SECONDS = 90
HOUR_MS = 3_600_000
TOPICS = ("mail", "invoices", "thumbnails", "reports")


class Work(threading.Thread):
    """Producers and consumers that keep a queue busy until `end` is called."""

    def __init__(self, host: OpenHost) -> None:
        super().__init__()
        self._host = host
        self._ended = threading.Event()

    def run(self) -> None:
        asyncio.run(self._work())

    def end(self) -> None:
        self._ended.set()
        self.join()

    async def _work(self) -> None:
        rng = Random(5)
        async with self._host.client() as client:
            await self._plant(client, rng)
            while not self._ended.is_set():
                topic = rng.choice(TOPICS)
                await client.enqueue([Item(topic, b"{}", priority=rng.choice((0, 0, 5, 10))) for _ in range(6)])
                deliveries = await client.dequeue(dict.fromkeys(TOPICS, 6), items_max=6)
                await self._settle(client, deliveries, rng)
                await asyncio.to_thread(self._ended.wait, 0.1)  # the pace of the load

    async def _plant(self, client: Client, rng: Random) -> None:
        delays = [rng.randrange(60_000, 30 * HOUR_MS) for _ in range(300)]
        await client.enqueue([Item("reports", b'{"of": "ann"}', delay_ms=delay) for delay in delays])
        await client.enqueue([Item("reports", b"{}", priority=rng.choice((0, 5, 10, 20))) for _ in range(400)])

    async def _settle(self, client: Client, deliveries: list[Delivery], rng: Random) -> None:
        sad = [each for each in deliveries if rng.random() < 0.04]
        if sad:
            await client.nack([Nack(each.id, each.token, dead=True) for each in sad])
        await client.ack([each for each in deliveries if each not in sad])


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenHost]:
    with OpenHost(tmp_path_factory.mktemp("pictures") / "host") as found:
        found.start()
        yield found


def test_pictures_of_the_pages(host: OpenHost, browser: BrowserThread, tmp_path: Path) -> None:
    folder = Path(os.environ.get(PICTURES) or tmp_path)
    console = Console(host.console_port)
    work = Work(host)
    work.start()
    try:
        with EventStream(console, "/topic?topic=reports") as clock:
            for _ in range(SECONDS):
                assert clock.next("point") is not None
        deferred = calls(host, lambda client: client.peek("reports", "deferred", 1)).items[0]
        pages = {
            "overview": "/",
            "topic": "/topic?topic=reports",
            "item": f"/item?id={deferred.id}",
        }

        def take(opened: Browser) -> None:
            page = opened.new_page(viewport={"width": 1_280, "height": 800}, color_scheme="light")
            for name, path in pages.items():
                page.goto(url(host, path))
                if page.locator("#live").count():
                    page.get_by_text("This page updates itself.").wait_for()
                page.screenshot(path=folder / f"console-{name}.png", full_page=name == "topic")

        browser.run(take)
    finally:
        work.end()
    for name in pages:
        assert (folder / f"console-{name}.png").stat().st_size > 10_000
