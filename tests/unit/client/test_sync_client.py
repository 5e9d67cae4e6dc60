"""Tests the synchronous client: the same calls from threads without an event loop, and how they end."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager

import pytest

from foqs.core.items.life import EventKind
from foqs_client import Client, InvalidArgument, Item, NotFound, SyncClient, UnknownOutcome, Unreachable
from foqs_client.background_loop import BackgroundLoop
from tests.support.aio import run
from tests.support.fake_queue import FakeQueue
from tests.support.inner_parts import pool_of
from tests.support.poll import until
from tests.support.rpc_server import ServedQueue, serve_queue


@contextmanager
def a_host(queue: FakeQueue | None = None) -> Iterator[ServedQueue]:
    """Yield a served queue in the event loop of another thread."""
    background = BackgroundLoop("host")
    ended = asyncio.Event()
    hosts: list[ServedQueue] = []

    async def serve() -> None:
        async with serve_queue(queue or FakeQueue()) as host:
            hosts.append(host)
            await ended.wait()

    async def end() -> None:
        ended.set()

    thread = threading.Thread(target=background.run, args=(serve,))
    thread.start()
    try:
        until(lambda: bool(hosts), "the host listens")
        yield hosts[0]
    finally:
        background.run(end)
        thread.join()
        background.close(end)


@contextmanager
def stuck() -> Iterator[tuple[ServedQueue, FakeQueue]]:
    """Yield a host that reads every call and never replies."""
    queue = FakeQueue()
    queue.gate = asyncio.Event()
    with a_host(queue) as host:
        yield host, queue


def public(of: type) -> dict[str, Callable[..., object]]:
    """Return the public methods, also inherited ones."""
    return {name: value for name in dir(of) if not name.startswith("_") and callable(value := getattr(of, name))}


def test_every_call_of_the_client_is_here_with_the_same_arguments_and_docstring() -> None:
    calls = {name: call for name, call in public(Client).items() if inspect.iscoroutinefunction(call)}
    assert len(calls) > 40
    for name, call in calls.items():
        face = public(SyncClient)[name]
        assert not inspect.iscoroutinefunction(face)
        if name != "close":
            assert inspect.signature(face) == inspect.signature(call)
            assert face.__doc__ == call.__doc__
    for name, value in vars(Client).items():
        if isinstance(value, property):
            assert getattr(SyncClient, name).__doc__ == value.__doc__


def test_calls_return_and_raise_as_the_client_does() -> None:
    with a_host() as host, SyncClient(host.url, namespace="default", timeout_ms=5_000) as client:
        assert not client.is_connected
        [id_] = [result.require() for result in client.enqueue([Item("t", b"x", priority=3)])]
        assert client.is_connected
        [delivery] = client.dequeue({"t": 1})
        assert (delivery.id, delivery.payload, delivery.priority) == (id_, b"x", 3)
        client.ack([delivery])[0].require()
        with pytest.raises(NotFound):
            client.item(id_)
        with pytest.raises(InvalidArgument):
            client.enqueue([Item("t")], timeout_ms=0)
    with pytest.raises(InvalidArgument, match="foqs://"):
        SyncClient("http://127.0.0.1")


def test_many_threads_share_one_client_and_one_connection() -> None:
    with a_host() as host, SyncClient(host.url) as client, ThreadPoolExecutor(8) as threads:
        ids = list(threads.map(lambda n: client.enqueue([Item(f"t{n}")])[0].require(), range(100)))
        topics = list(threads.map(lambda id_: client.item(id_).topic, ids))
        assert topics == [f"t{n}" for n in range(100)]
        assert len(host.server.connections) == 1


def waits_for_a_result(thread: int) -> bool:
    """Return whether the thread waits within `BackgroundLoop.run`, where an interrupt ends its call."""
    frame = sys._current_frames().get(thread)
    names = [each.f_code.co_name for each, _ in traceback.walk_stack(frame)]
    return names[:2] == ["wait", "result"]


def test_ctrl_c_ends_the_waiting_call_and_the_client_stays_usable() -> None:
    caller = threading.get_ident()
    with stuck() as (host, queue), SyncClient(host.url) as client:

        def press() -> None:
            until(lambda: queue.running == 1, "the call is under way")
            until(lambda: waits_for_a_result(caller), "its caller waits")
            os.kill(os.getpid(), signal.SIGINT)

        presser = threading.Thread(target=press)
        presser.start()
        with pytest.raises(KeyboardInterrupt):
            client.dequeue({"t": 1}, wait_ms=60_000)
        presser.join()
        assert client.routing().version == 42
        link = pool_of(client).ready_connection
        assert link is not None
        until(lambda: link.in_flight_count == 0, "the host has ended the call")


def test_items_that_an_interrupted_caller_did_not_read_are_released(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = FakeQueue()
    with a_host(queue) as host, SyncClient(host.url) as client:
        client.enqueue([Item("t")])

        result, caller = Future.result, threading.get_ident()

        def interrupted(future: Future[object], timeout: float | None = None) -> object:
            if threading.get_ident() != caller:
                return result(future, timeout)
            wait([future])
            monkeypatch.undo()
            raise KeyboardInterrupt

        monkeypatch.setattr(Future, "result", interrupted)
        with pytest.raises(KeyboardInterrupt):
            client.dequeue({"t": 1})
        until(lambda: any(name == "apply" for name, _ in queue.calls), "the item is released")
        [released] = [details for name, details in queue.calls if name == "apply"]
        assert [event.kind for _, event in released] == [EventKind.RELEASE]  # type: ignore[attr-defined]


def test_close_ends_calls_of_other_threads_like_a_lost_connection() -> None:
    with stuck() as (host, queue), ThreadPoolExecutor(2) as threads:
        client = SyncClient(host.url, automatic_keys=False)
        writes = threads.submit(client.enqueue, [Item("t")])
        reads = threads.submit(client.topics)
        until(lambda: queue.running == 2, "both are under way")
        client.close()
        client.close()
        assert isinstance(writes.exception(), UnknownOutcome)
        assert isinstance(reads.exception(), Unreachable)
        with pytest.raises(Unreachable, match="closed"):
            client.topics()


def client_threads() -> set[threading.Thread]:
    """Return the threads of the clients of this process. One of an earlier test may still be ending."""
    return {thread for thread in threading.enumerate() if thread.name == "foqs-client"}


def test_garbage_collected_client_ends_its_thread() -> None:
    before = client_threads()
    with a_host() as host:
        client = SyncClient(host.url)
        client.topics()
        [thread] = client_threads() - before
        del client
        gc.collect()
        thread.join(60)
        assert not thread.is_alive()


def test_client_collected_by_its_own_thread_ends_it_too() -> None:
    before = client_threads()
    with a_host() as host:
        client = SyncClient(host.url)
        client.topics()
        background, end = client._background, client._finalize

        async def collect() -> None:
            end()

        [thread] = client_threads() - before
        background.run(collect)
        thread.join(60)
        assert not thread.is_alive()


def test_error_of_a_call_in_a_running_loop_names_the_async_client() -> None:
    async def main(client: SyncClient) -> None:
        with pytest.raises(RuntimeError, match="use Client here"):
            client.topics()
        assert (await asyncio.to_thread(client.topics)).topics == []

    with a_host() as host, SyncClient(host.url) as client:
        run(main(client))


def in_a_child(work: Callable[[], None]) -> int:
    """Run `work` in a forked process and return its exit code."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_used_client_raises_after_a_fork_and_an_unused_one_works() -> None:
    with a_host() as host, SyncClient(host.url) as used, SyncClient(host.url) as unused:
        used.topics()

        def work() -> None:
            with pytest.raises(RuntimeError, match="before the process was forked"):
                used.topics()
            used.close()
            assert unused.topics().topics == []
            unused.close()

        assert in_a_child(work) == 0
        assert used.topics().topics == []


EXITING = """
import sys, threading
from foqs_client import Item, SyncClient

client = SyncClient(sys.argv[1], automatic_keys=False)
client.routing()

def call():
    try:
        client.dequeue({"t": 1}, wait_ms=60_000)
    except Exception as error:
        print(type(error).__name__, flush=True)

threading.Thread(target=call, daemon=True).start()
while client._client._pool.ready_connection is None or client._client._pool.ready_connection.in_flight_count == 0:
    pass
print("leaving", flush=True)
"""


def test_interpreter_exits_with_calls_in_flight() -> None:
    with stuck() as (host, _):
        program = subprocess.run(
            [sys.executable, "-W", "error", "-c", EXITING, host.url],
            capture_output=True,
            text=True,
            timeout=60,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert program.stderr == ""
        assert program.stdout.splitlines()[0] == "leaving"
        assert program.returncode == 0
