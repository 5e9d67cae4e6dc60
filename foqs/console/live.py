"""Keeps open pages up to date: one event stream for each, and one round a second for all.

Always true: a round collects the shared figures once, and draws each distinct part of a
page once, however many pages show it; a stream gets a part only when it changed, and
never more often than once in its period; a slow browser misses parts that are outdated when it reads, and delays nobody.
The permissions of a stream are checked in each round. Rounds take at most one part in
`COST_FACTOR` of a core: a round that took long is followed by a longer pause. If all
streams are taken, principals have equal shares.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from foqs.console.history import Point
from foqs.console.page_request import PageRequest
from foqs_client import FoqsError

log = logging.getLogger(__name__)

PERIOD_S: Final = 1.0
PAUSE_S_MAX: Final = 60.0
COST_FACTOR: Final = 25
PART_TIMEOUT_S: Final = 5.0
PING_S: Final = 15.0
STREAMS_MAX: Final = 100
STREAM_PATH: Final = "/stream"
_LINE_END: Final = re.compile("\r\n|\r|\n")


@dataclass(slots=True, frozen=True)
class LivePart:
    """The part of a page that is kept up to date. Its element has the id `live`.

    Attributes:
        template: the name of the template that draws it.
        fields: the fields of the page's address that it depends on, beside the namespace.
        values: returns what the template needs.
        point: returns the newest point of the page's charts.
    """

    template: str
    fields: tuple[str, ...]
    values: Callable[[PageRequest], Awaitable[Mapping[str, Any]]]
    period_s: float = PERIOD_S
    point: Callable[[PageRequest], Point | None] | None = None

    def key(self, page_request: PageRequest) -> Hashable:
        """Return what a drawing depends on: pages with equal keys show the same."""
        fields = tuple(page_request.values.get(name, "") for name in self.fields)
        return self.template, page_request.permissions.authenticated, page_request.namespace, fields

    def address(self, page_request: PageRequest) -> str:
        """Return the address of the page's event stream."""
        fields = {name: page_request.values.get(name, "") for name in self.fields}
        return page_request.site.link(STREAM_PATH, page=page_request.path, namespace=page_request.namespace, **fields)


class LiveStream:
    """The events of one open page.

    Args:
        page_request: returns the page request with the permissions of now; None: the session is over. Raises FoqsError: the
            page may not be shown.
        owner: the name of its principal; None: the console does not authenticate.
    """

    def __init__(
        self, part: LivePart, page_request: Callable[[], PageRequest | None], owner: str | None, due_s: float
    ) -> None:
        self.part = part
        self.page_request = page_request
        self.owner = owner
        self.due_s = due_s
        """When the part is to be drawn next, on the loop's clock."""
        self._last = {"problem": ""}
        self._waiting: dict[str, str] = {}
        self._changed = asyncio.Event()
        self._is_ended = False

    def offer(self, event: str, text: str) -> None:
        """Send an event unless it is the same as the last one of its name. A newer one replaces one that waits."""
        if self._last.get(event) != text:
            self._last[event] = self._waiting[event] = text
            self._changed.set()

    def end(self) -> None:
        """End the stream."""
        self._is_ended = True
        self._changed.set()

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the bytes to send, until the stream ends."""
        while not (self._is_ended and not self._waiting):
            try:
                async with asyncio.timeout(PING_S):
                    await self._changed.wait()
            except TimeoutError:
                yield b":\n\n"  # finds out that the browser has left
                continue
            self._changed.clear()
            waiting, self._waiting = self._waiting, {}
            if waiting:
                yield "".join(encode_event(event, text) for event, text in waiting.items()).encode()


def encode_event(event: str, text: str) -> str:
    """Return an event in the form of `text/event-stream`."""
    # Each kind of line end would end a field, and what follows could be a field of its own.
    lines = "".join(f"data: {line}\n" for line in _LINE_END.split(text))
    return f"event: {event}\n{lines}\n"


class LiveHub:
    """The event streams of the open pages of one console.

    Args:
        collect: collects the figures that all pages share.
        draw: returns a template as text.
        cpu_s: returns the processor time of this thread.
    """

    def __init__(
        self,
        collect: Callable[[], Awaitable[object]],
        draw: Callable[[str, PageRequest, Mapping[str, Any]], str],
        cpu_s: Callable[[], float],
    ) -> None:
        self._collect = collect
        self._draw = draw
        self._cpu_s = cpu_s
        self._streams: dict[LiveStream, None] = {}
        """The open streams, oldest first."""
        self._rounds: asyncio.Task[None] | None = None
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._streams)

    def open(
        self, part: LivePart, page_request: Callable[[], PageRequest | None], owner: str | None
    ) -> LiveStream | None:
        """Open a stream for a principal; None if there are too many."""
        if self._is_closed or (len(self._streams) >= STREAMS_MAX and not self._make_room(owner)):
            return None
        # The page was drawn a moment ago.
        stream = LiveStream(part, page_request, owner, asyncio.get_running_loop().time() + PERIOD_S)
        self._streams[stream] = None
        if self._rounds is None:
            self._rounds = asyncio.get_running_loop().create_task(self._run())
        return stream

    def _make_room(self, owner: str | None) -> bool:
        """End the oldest stream of the principal that has the most. Return False if the new one's would have as many."""
        counts = Counter(stream.owner for stream in self._streams)
        largest = max(counts, key=counts.__getitem__)
        if counts[largest] <= counts[owner] + 1:
            return False
        oldest = next(stream for stream in self._streams if stream.owner == largest)
        oldest.offer("problem", "too many pages are open at this host, so this one is no longer updated; load it again")
        oldest.end()
        self.drop(oldest)
        return True

    def drop(self, stream: LiveStream) -> None:
        """Forget a stream whose browser has left."""
        self._streams.pop(stream, None)

    async def close(self) -> None:
        """End all streams."""
        self._is_closed = True
        for stream in self._streams:
            stream.end()
        if self._rounds is not None:
            self._rounds.cancel()
            await asyncio.gather(self._rounds, return_exceptions=True)

    async def _run(self) -> None:
        """Make rounds as long as there are streams."""
        try:
            pause_s = PERIOD_S
            while True:
                await asyncio.sleep(pause_s)
                if not self._streams:
                    return
                started_s = self._cpu_s()
                try:
                    await self._round()
                except Exception:
                    log.exception(
                        "the console's open pages could not be updated, for an unexpected error; trying again"
                    )
                pause_s = min(PAUSE_S_MAX, max(PERIOD_S, COST_FACTOR * (self._cpu_s() - started_s)))
        finally:
            self._rounds = None

    async def _round(self) -> None:
        await self._collect()
        now_s = asyncio.get_running_loop().time()
        drawings: defaultdict[Hashable, list[tuple[LiveStream, PageRequest]]] = defaultdict(list)
        for stream in list(self._streams):
            try:
                page_request = stream.page_request()
            except FoqsError as error:
                stream.offer("problem", error.message)
                continue
            if page_request is None:
                stream.end()
            elif stream.due_s <= now_s:
                # A little early is on time: rounds are a period apart, more or less.
                stream.due_s = now_s + stream.part.period_s - PERIOD_S / 2
                drawings[stream.part.key(page_request)].append((stream, page_request))
        await asyncio.gather(*(self._serve(group) for group in drawings.values()))

    async def _serve(self, group: list[tuple[LiveStream, PageRequest]]) -> None:
        """Draw a part once, for all streams that show it."""
        stream, page_request = group[0]
        part = stream.part
        events: dict[str, str] = {"problem": ""}
        try:
            with page_request:
                async with asyncio.timeout(PART_TIMEOUT_S):
                    values = await part.values(page_request)
            events["live"] = self._draw(part.template, page_request, values)
            point = part.point(page_request) if part.point is not None else None
            if point is not None:
                events["point"] = json.dumps(point.rounded())
        except FoqsError as error:
            events["problem"] = error.message
        except TimeoutError:
            events["problem"] = "the host did not answer in time"
        except Exception:
            log.exception("the template %s of the console's open pages cannot be drawn; trying again", part.template)
            events["problem"] = "the page failed; the host's log says why"
        for each, _ in group:
            for event, text in events.items():
                each.offer(event, text)
