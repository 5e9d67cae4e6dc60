"""How soon does the console show a page? `python -m perf.console`

Fills a host, gives it some load, and opens each page in Debian's Chromium, each time in
a profile without a cache, as somebody does who opens the console for the first time.
The figures are the time from the start of the navigation to the first paint with
content, in milliseconds, and what was sent for the page and all that it loads, in bytes.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any, Final

from playwright.sync_api import Browser, sync_playwright

from foqs.dev.server_process import free_port, stop_on_signals
from foqs_client import Client, Item, Nack
from perf.lib import machine
from perf.lib.report import Report, say
from perf.lib.servers import ServerNotAvailable
from perf.lib.stage import add_stage_options, stage

SHOWN: Final = ("page", "items", "topics", "first_paint_ms", "first_paint_ms_max", "bytes")
HOUR_MS: Final = 3_600_000
CALL_ITEMS: Final = 500
_FIRST_PAINT: Final = """() => {
  const found = performance.getEntriesByName("first-contentful-paint")[0];
  return found ? found.startTime : null;
}"""
_BYTES: Final = """() => performance.getEntriesByType("navigation").concat(performance.getEntriesByType("resource"))
  .reduce((sum, entry) => sum + entry.transferSize, 0)"""


def main() -> None:
    options = _parser().parse_args()
    report = Report("console")
    port = free_port()
    with stage(options.system, options.shards, {"server.console": True, "server.console_port": port}) as found:
        pages = asyncio.run(_fill(found.place, options.items, options.topics))
        with _chromium() as browser:
            for name, path in pages.items():
                shown = [_open(browser, f"http://127.0.0.1:{port}{path}") for _ in range(options.rounds)]
                figures = {
                    "first_paint_ms": round(median(paint_ms for paint_ms, _ in shown)),
                    "first_paint_ms_max": round(max(paint_ms for paint_ms, _ in shown)),
                    "bytes": max(size for _, size in shown),
                }
                report.add({"page": name, **_parameters(options)}, figures)
                say(f"{name}: {figures['first_paint_ms']} ms")
    report.table(SHOWN)


def _parameters(options: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(options, name) for name in ("items", "topics", "shards", "rounds", "system")}


@contextmanager
def _chromium() -> Iterator[Browser]:
    program = shutil.which("chromium")
    if program is None:
        raise ServerNotAvailable("chromium is missing; make system-packages installs it")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


def _open(browser: Browser, url: str) -> tuple[float, int]:
    """Return the time to the first paint in milliseconds, and the bytes that were sent."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(url, wait_until="load")
    page.wait_for_function(_FIRST_PAINT)
    paint_ms, size = page.evaluate(_FIRST_PAINT), page.evaluate(_BYTES)
    context.close()
    return float(paint_ms), int(size)


async def _fill(place: str, count: int, topics: int) -> dict[str, str]:
    """Enqueue items into some topics, deferred, ready and dead ones. Return the paths of the pages by name."""
    async with Client(place, timeout_ms=60_000) as client:
        for begin in range(0, count, CALL_ITEMS):
            numbers = range(begin, min(begin + CALL_ITEMS, count))
            items = [
                Item(
                    f"t{number % topics}",
                    b"x" * 100,
                    priority=number % 7,
                    delay_ms=HOUR_MS * (number % 40) if number % 3 == 0 else None,
                )
                for number in numbers
            ]
            for result in await client.enqueue(items):
                id = result.require()
        for _ in range(10):
            found = await client.dequeue({"t1": 100})
            await client.nack([Nack(each.id, each.token, dead=True) for each in found])
    return {
        "overview": "/",
        "topics": "/topics",
        "topics by ready items": "/topics?order=ready",
        "topic": "/topic?topic=t1",
        "item": f"/item?id={id}",
        "dead": "/dead",
        "bulk": "/bulk",
        "enqueue": "/enqueue",
        "namespaces": "/namespaces",
        "cluster": "/cluster",
        "audit": "/audit",
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m perf.console", description=__doc__.partition("\n")[0])
    parser.add_argument("--items", type=int, default=200_000)
    parser.add_argument("--topics", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=7)
    add_stage_options(parser, shards=4)
    return parser


if __name__ == "__main__":
    with stop_on_signals():
        machine.facts()
        main()
