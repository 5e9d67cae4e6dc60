"""Event streams of open pages: what is sent, how often, and what it costs."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Mapping
from typing import Any, cast

import pytest
from aiohttp.test_utils import make_mocked_request

from foqs.access.authenticator import AuthenticatedPrincipal
from foqs.access.call_permissions import Principal
from foqs.console.history import Point
from foqs.console.live import COST_FACTOR, PING_S, STREAMS_MAX, LiveHub, LivePart, LiveStream, encode_event
from foqs.console.page_request import PagePermissions, PageRequest
from foqs.console.site import Site
from foqs_client import PermissionDenied, Unavailable
from tests.support.virtual_time import run_virtual


def parse(text: str) -> list[tuple[str, str]]:
    """Return the events of a stream as a browser does."""
    found: list[tuple[str, str]] = []
    event = ""
    data: list[str] = []
    for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        name, _, value = line.partition(":")
        if not line:
            if data:
                found.append((event, "\n".join(data)))
            event, data = "", []
        elif name == "event":
            event = value.removeprefix(" ")
        elif name == "data":
            data.append(value.removeprefix(" "))
    return found


class World:
    """A hub, and one part of a page whose text can be changed."""

    def __init__(self) -> None:
        self.text = "one"
        self.points = 0
        self.collections = 0
        self.drawings = 0
        self.cost_s = 0.0
        self.cpu_s = 0.0
        self.error: Exception | None = None
        self.part = LivePart("template", ("topic",), self._values, point=self._point)
        self.hub = LiveHub(self._collect, self._draw, lambda: self.cpu_s)

    async def _collect(self) -> None:
        self.collections += 1
        self.cpu_s += self.cost_s

    async def _values(self, page_request: PageRequest) -> Mapping[str, Any]:
        if self.error is not None:
            raise self.error
        return {"text": self.text}

    def _draw(self, template: str, page_request: PageRequest, values: Mapping[str, Any]) -> str:
        self.drawings += 1
        return f"{page_request.values.get('topic')}: {values['text']}"

    def _point(self, page_request: PageRequest) -> Point:
        self.points += 1
        return Point(float(self.points), 1, 2, 3, 4, 5.0, 6.0, 7.0)

    def page_request(self, topic: str = "a", principal: AuthenticatedPrincipal | None = None) -> PageRequest:
        request = make_mocked_request("GET", f"/stream?page=/topic&namespace=n&topic={topic}")
        nothing = cast(Any, None)
        return PageRequest(
            request, PagePermissions(principal, lambda *_: ()), request.query, nothing, nothing, ["n"], nothing, Site()
        )

    def open(self, topic: str = "a", principal: AuthenticatedPrincipal | None = None) -> Page:
        return Page(self, topic, principal)


class Page:
    """An open page: it collects what it is sent."""

    def __init__(self, world: World, topic: str, principal: AuthenticatedPrincipal | None) -> None:
        self.is_logged_in = True
        owner = None if principal is None else principal.principal.name
        stream = world.hub.open(
            world.part, lambda: world.page_request(topic, principal) if self.is_logged_in else None, owner
        )
        assert stream is not None
        self.stream = stream
        self.received: list[tuple[float, bytes]] = []
        self.reading = asyncio.get_running_loop().create_task(self._read())

    async def _read(self) -> None:
        async for chunk in self.stream.chunks():
            self.received.append((asyncio.get_running_loop().time(), chunk))

    def texts(self, event: str = "live") -> list[str]:
        events = parse(b"".join(chunk for _, chunk in self.received).decode())
        return [data for name, data in events if name == event]


def test_a_page_gets_its_part_when_it_changes_and_its_points() -> None:
    async def main() -> None:
        world = World()
        page = world.open()
        await asyncio.sleep(3.5)
        assert page.texts() == ["a: one"]
        assert [json.loads(text)[0] for text in page.texts("point")] == [1, 2, 3]
        world.text = "two"
        await asyncio.sleep(1.0)
        assert page.texts() == ["a: one", "a: two"]
        await world.hub.close()
        await page.reading

    run_virtual(main)


def test_one_collection_and_one_drawing_a_second_serve_all_pages_that_show_the_same() -> None:
    async def main() -> None:
        world = World()
        pages = [world.open() for _ in range(10)]
        other = world.open("b")
        await asyncio.sleep(10.5)
        assert world.collections == 10
        assert world.drawings == 20
        assert all(page.texts() == ["a: one"] for page in pages)
        assert other.texts() == ["b: one"]
        await world.hub.close()

    run_virtual(main)


def test_principals_do_not_share_drawings() -> None:
    async def main() -> None:
        world = World()
        principals = [AuthenticatedPrincipal(Principal(name), name.encode()) for name in ("ann", "bob")]
        for principal in principals:
            world.open("a", principal)
        await asyncio.sleep(1.5)
        assert world.drawings == 2
        await world.hub.close()

    run_virtual(main)


def test_a_slow_browser_gets_the_newest_state_only() -> None:
    async def main() -> None:
        world = World()
        stream = world.hub.open(world.part, world.page_request, None)
        assert stream is not None
        for number in range(50):
            world.text = str(number)
            await asyncio.sleep(1.0)
        chunk = await anext(stream.chunks())
        events = parse(chunk.decode())
        assert [name for name, _ in events].count("live") == 1
        assert [name for name, _ in events].count("point") == 1
        await world.hub.close()

    run_virtual(main)


@pytest.mark.parametrize("cost_s", [0.001, 0.1, 1.0])
def test_rounds_take_a_small_part_of_a_core(cost_s: float) -> None:
    async def main() -> None:
        world = World()
        world.cost_s = cost_s
        world.open()
        await asyncio.sleep(600)
        assert world.cpu_s <= 600 / COST_FACTOR + cost_s
        assert world.collections >= min(590, 600 / (COST_FACTOR * cost_s) - 2)
        await world.hub.close()

    run_virtual(main)


def test_a_session_that_is_over_ends_its_stream() -> None:
    async def main() -> None:
        world = World()
        page = world.open()
        await asyncio.sleep(1.5)
        page.is_logged_in = False
        await asyncio.sleep(1.0)
        assert page.reading.done()
        await world.hub.close()

    run_virtual(main)


def test_rounds_end_with_the_last_page_and_begin_with_the_next() -> None:
    async def main() -> None:
        world = World()
        page = world.open()
        await asyncio.sleep(1.5)
        world.hub.drop(page.stream)
        await asyncio.sleep(100)
        assert world.collections == 1
        again = world.open()
        await asyncio.sleep(1.5)
        assert again.texts() == ["a: one"]
        await world.hub.close()

    run_virtual(main)


def test_an_error_is_said_once_and_taken_back() -> None:
    async def main() -> None:
        world = World()
        page = world.open()
        world.error = Unavailable("no shard is served")
        await asyncio.sleep(3.5)
        world.error = None
        await asyncio.sleep(1.0)
        assert page.texts("problem") == ["no shard is served", ""]
        assert page.texts() == ["a: one"]
        await world.hub.close()

    run_virtual(main)


def test_a_fault_of_one_round_does_not_end_the_next(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        world = World()
        page = world.open()
        world.error = ZeroDivisionError()
        await asyncio.sleep(1.5)
        world.error = None
        await asyncio.sleep(1.0)
        assert page.texts() == ["a: one"]
        await world.hub.close()

    run_virtual(main)
    assert "the template template of the console's open pages cannot be drawn" in caplog.text


def test_a_fault_of_one_page_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        world, faulty = World(), World()
        faulty.error = ZeroDivisionError()
        broken = world.hub.open(faulty.part, lambda: world.page_request("b"), None)
        assert broken is not None
        page = world.open()
        await asyncio.sleep(1.5)
        assert page.texts() == ["a: one"]
        assert parse((await anext(broken.chunks())).decode()) == [
            ("problem", "the page failed; the host's log says why")
        ]
        await world.hub.close()

    run_virtual(main)


def test_a_page_that_may_not_be_shown_any_more_says_so_and_the_others_go_on() -> None:
    async def main() -> None:
        world = World()

        def refuse() -> PageRequest:
            raise PermissionDenied("no permission")

        refused = world.hub.open(world.part, refuse, None)
        assert refused is not None
        page = world.open()
        await asyncio.sleep(2.5)
        assert page.texts() == ["a: one"]
        assert parse((await anext(refused.chunks())).decode()) == [("problem", "no permission")]
        await world.hub.close()

    run_virtual(main)


def test_a_page_is_sent_something_at_most_once_a_second() -> None:
    async def main() -> None:
        world = World()
        page = world.open()
        for number in range(200):
            world.text = str(number)
            await asyncio.sleep(0.1)
        times = [at_s for at_s, _ in page.received]
        assert len(times) >= 18
        assert all(after - before >= 0.999 for before, after in itertools.pairwise(times))
        await world.hub.close()

    run_virtual(main)


def test_a_silent_stream_finds_out_whether_its_browser_is_there() -> None:
    async def main() -> None:
        stream = LiveStream(World().part, lambda: None, None, 0.0)
        assert await anext(stream.chunks()) == b":\n\n"
        assert asyncio.get_running_loop().time() == PING_S

    run_virtual(main)


def test_too_many_pages_get_no_stream() -> None:
    async def main() -> None:
        world = World()
        for _ in range(STREAMS_MAX):
            world.open()
        assert world.hub.open(world.part, world.page_request, None) is None
        await world.hub.close()
        assert world.hub.open(world.part, world.page_request, None) is None

    run_virtual(main)


def test_principals_share_the_streams_of_a_host_however_many_pages_one_of_them_opens() -> None:
    async def main() -> None:
        world = World()
        greedy, modest = (AuthenticatedPrincipal(Principal(name), b"") for name in ("greedy", "modest"))
        first = world.open("a", greedy)
        others = [world.open("a", greedy) for _ in range(STREAMS_MAX - 1)]
        assert world.hub.open(world.part, world.page_request, "greedy") is None
        pages = [world.open("a", modest) for _ in range(STREAMS_MAX // 2)]
        assert len(world.hub) == STREAMS_MAX
        await first.reading
        assert first.texts("problem") == [
            "too many pages are open at this host, so this one is no longer updated; load it again"
        ]
        await asyncio.gather(*(page.reading for page in others[: STREAMS_MAX // 2 - 1]))
        assert not any(page.reading.done() for page in (*others[STREAMS_MAX // 2 - 1 :], *pages))
        assert world.hub.open(world.part, world.page_request, "modest") is None
        assert world.hub.open(world.part, world.page_request, "greedy") is None
        await world.hub.close()

    run_virtual(main)


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
def test_a_name_with_line_ends_makes_no_event_of_its_own(end: str) -> None:
    text = f"a{end}{end}event: point{end}data: [1]{end}{end}"
    assert parse(encode_event("live", text)) == [("live", "a\n\nevent: point\ndata: [1]\n\n")]
