"""A browser for tests, in a thread of its own. If it hangs, the test ends and says in which call.

Always true: work that hangs in the browser ends, as the browser is killed; the next work gets a new one.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

from greenlet import getcurrent, greenlet, settrace
from playwright.sync_api import Browser, BrowserContext, Error, Request, sync_playwright

from tests.support.descendants import descendants

T = TypeVar("T")
CALL_S: Final = 60.0
"""The time in which a call of the browser must end. Those with a limit of their own end in half of it."""
_CALLS_FILE: Final = "playwright/sync_api/_generated.py"
"""The file with all calls of the browser."""
_KILLED_S: Final = 10.0
"""The time in which a call fails after its browser was killed."""


class BrowserHangs(AssertionError):
    """A call of the browser did not end. The text names it, the open pages and their unfinished requests."""


class BrowserThread:
    """Runs work with a browser in a thread of its own, as Playwright keeps an event loop running in its thread.

    Args:
        program: the path of Chromium.

    Attributes:
        call_s: the time in which each call of the browser must end.
    """

    def __init__(self, program: str, flags: Sequence[str] = ()) -> None:
        self.call_s = CALL_S
        self._program = program
        self._flags = flags
        self._thread = ThreadPoolExecutor(1)
        self._work: greenlet | None = None
        """Where the work runs. It is left for the event loop during each call of the browser."""
        self._work_thread = 0
        self._called_s = 0.0
        """When the last call of the browser ended."""
        self._unfinished: dict[Request, str] = {}
        """The addresses of requests that were not answered yet."""

    def __enter__(self) -> BrowserThread:
        self._playwright = self._thread.submit(lambda: sync_playwright().start()).result(CALL_S)
        self._browser = self._thread.submit(self._launch).result(CALL_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.submit(self._browser.close).result(CALL_S)
        self._thread.submit(self._playwright.stop).result(CALL_S)
        self._thread.shutdown()

    def _launch(self) -> Browser:
        flags = ["--no-sandbox", "--disable-gpu", *self._flags]
        browser = self._playwright.chromium.launch(executable_path=self._program, args=flags)
        browser.on("context", self._note_requests)
        return browser

    def _note_requests(self, context: BrowserContext) -> None:
        context.on("request", self._on_request)
        context.on("requestfinished", self._on_request_ended)
        context.on("requestfailed", self._on_request_ended)

    def _on_request(self, request: Request) -> None:
        self._unfinished[request] = request.url

    def _on_request_ended(self, request: Request) -> None:
        self._unfinished.pop(request, None)

    def run(self, work: Callable[[Browser], T]) -> T:
        """Return what the work returns, and close its pages. Raises BrowserHangs."""
        self._called_s = time.monotonic()
        running = self._thread.submit(self._follow, work)
        while not wait([running], timeout=1).done:
            if time.monotonic() - self._called_s > self.call_s:
                hang = self._describe()
                self._kill()
                ended = wait([running], timeout=_KILLED_S).done
                # Its context names what failed before the browser hung while its pages were closed.
                raise BrowserHangs(hang) from (running.exception() if ended else None)
        return running.result()

    def _follow(self, work: Callable[[Browser], T]) -> T:
        if not self._browser.is_connected():
            self._browser = self._launch()
        self._unfinished.clear()
        self._work, self._work_thread = getcurrent(), threading.get_ident()
        settrace(self._on_switch)
        try:
            return work(self._browser)
        finally:
            try:
                if self._browser.is_connected():
                    self._close_pages()
            finally:
                settrace(None)

    def _close_pages(self) -> None:
        """Close what the work opened. An error of the browser, such as of a page that has crashed, hides no error of the work.

        Each page goes to an empty one before: Chromium can forget to close a page while that goes to another
        (crbug.com/536385539), and Playwright then waits for ever. A navigation that begins just then interrupts this once.
        """
        for context in self._browser.contexts:
            for page in context.pages:
                for _ in range(2):
                    with suppress(Error):
                        page.goto("about:blank")
                        break
            with suppress(Error):
                context.close()

    def _on_switch(self, _: str, switch: tuple[greenlet, greenlet]) -> None:
        if switch[1] is self._work:
            self._called_s = time.monotonic()

    def _describe(self) -> str:
        """Return which call does not end, and what the browser has not done."""
        frame = None if self._work is None else self._work.gr_frame
        frames = [each for each, _ in traceback.walk_stack(frame or sys._current_frames().get(self._work_thread))]
        calls = [each.f_code.co_qualname for each in frames if each.f_code.co_filename.endswith(_CALLS_FILE)]
        places = [each for each in traceback.extract_stack(frames[0]) if "/tests/" in each.filename]
        place = f"{Path(places[-1].filename).name}:{places[-1].lineno}, {places[-1].line}" if places else "no test"
        pages = [page.url for context in self._browser.contexts for page in context.pages]
        return (
            f"{calls[0] if calls else 'code outside the browser'} did not end in {self.call_s:.0f} s: {place}\n"
            f"open pages: {', '.join(pages) or 'none'}\n"
            f"unfinished requests: {', '.join(self._unfinished.values()) or 'none'}"
        )

    def _kill(self) -> None:
        """Kill the processes of the browser. The pending call fails."""
        for pid, command in descendants(os.getpid()).items():
            if Path(self._program).name in command:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
