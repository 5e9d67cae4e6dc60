"""A call that names an unknown namespace waits for a reading of the catalog."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any

from foqs.catalog.document import Document, NamespaceRecord
from foqs.catalog.namespaces import Namespaces
from foqs.catalog.port import CatalogFailed
from foqs.cluster.unknown_namespaces import PAUSE_S, UnknownNamespaces
from foqs.options.options import NamespaceOptions
from foqs.rpc.call import Call
from foqs.rpc.methods import contract_methods
from foqs_contract.errors import Unavailable
from foqs_contract.idl import ttypes
from tests.support.recorded_call import RecordedCall
from tests.support.virtual_time import run_virtual


class World:
    """A catalog that lists "old", and soon perhaps more; and the calls that were served and that failed."""

    def __init__(self) -> None:
        self.namespaces = Namespaces(NamespaceOptions())
        self.namespaces.apply(Document(1, {"old": NamespaceRecord()}))
        self.stored = self.namespaces.document
        self.readings: list[float] = []
        self.reading = asyncio.Event()
        self.served: list[tuple[str, float]] = []
        self.is_readable = True
        layer = UnknownNamespaces(self.namespaces, self._refresh).layer
        self._method = contract_methods({"getUsage": self._serve}, layer)[b"getUsage"]
        self._calls: list[RecordedCall] = []
        self.time = asyncio.get_running_loop().time

    def call(self, name: str | bytes, timeout_s: float = 10.0) -> Any:
        request = ttypes.NamespaceRequest(name.encode() if isinstance(name, str) else name)
        call = RecordedCall("getUsage", request, method=self._method, deadline=self.time() + timeout_s)
        self._calls.append(call)
        return self._method.handle(call)

    @property
    def failures(self) -> list[Exception]:
        return [error for call in self._calls for error in call.replies]

    def _serve(self, call: Call) -> None:
        self.served.append((call.request.namespace_name.decode(errors="replace"), self.time()))

    async def _refresh(self) -> None:
        self.readings.append(self.time())
        self.reading.set()
        await asyncio.sleep(0.01)
        if not self.is_readable:
            raise CatalogFailed("it is damaged")
        self.namespaces.apply(self.stored)


def play(story: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        await story(World())

    run_virtual(main)


def test_call_with_a_known_or_malformed_name_reads_nothing() -> None:
    async def story(world: World) -> None:
        world.call("old")
        world.call(b"\xff")
        assert [name for name, _ in world.served] == ["old", "\N{REPLACEMENT CHARACTER}"]
        assert world.readings == []

    play(story)


def test_call_is_served_after_a_reading_that_began_after_it() -> None:
    async def story(world: World) -> None:
        world.call("new")
        await asyncio.sleep(0.005)
        world.stored = Document(2, {"old": NamespaceRecord(), "new": NamespaceRecord()})
        world.call("other")
        await asyncio.sleep(1)
        assert [name for name, _ in world.served] == ["new", "other"]
        assert world.served[1][1] > world.readings[1] >= world.readings[0] + PAUSE_S

    play(story)


def test_many_wrong_names_share_readings_with_pauses() -> None:
    async def story(world: World) -> None:
        for number in range(100):
            world.call(f"wrong-{number}")
            await asyncio.sleep(0.01)
        await asyncio.sleep(1)
        assert len(world.served) == 100
        assert len(world.readings) <= 1 / PAUSE_S + 2

    play(story)


def test_call_fails_as_unavailable_if_the_catalog_cannot_be_read_by_its_deadline() -> None:
    async def story(world: World) -> None:
        world.is_readable = False
        world.call("new")
        world.call("new", timeout_s=0.0)
        await asyncio.sleep(1)
        assert world.served == []
        assert [type(error) for error in world.failures] == [Unavailable, Unavailable]

    play(story)


def test_abandoned_call_is_not_served() -> None:
    async def story(world: World) -> None:
        world.call("new").abandon()
        await asyncio.sleep(1)
        assert (world.served, world.failures) == ([], [])

    play(story)


def test_failed_reading_for_which_no_call_waits_any_more_is_no_error_of_the_host() -> None:
    async def story() -> list[str]:
        reported: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["message"]))
        world = World()
        world.is_readable = False
        call = world.call("new")
        await world.reading.wait()
        call.abandon()
        await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})
        del call
        gc.collect()  # a task that nobody asked for its error reports it then
        return reported

    assert asyncio.run(story()) == []
