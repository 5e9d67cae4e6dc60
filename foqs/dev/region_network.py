"""A distance between the regions of a cluster on this machine: data takes time from one region to another.

Each region but the first has a network namespace of its own; the first one is where this process is. A port of 127.0.0.1
in one region can be reached under the same number in all others: a proxy passes the data on after the delay. So programs
need no other addresses, and nothing is between those of one region.

Always true: data of one connection arrives in order. It arrives also after its sender was killed, unless `lose` is called.
To connect takes no time. Namespaces need root. Knows nothing of databases and hosts.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import os
import socket
import struct
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

from foqs.dev.server_process import ServerNotAvailable

_CLONE_NEWNET: Final = 0x40000000
"""Of linux/sched.h."""
_SIOCSIFFLAGS: Final = 0x8914
"""Of linux/sockios.h."""
_IFF_UP: Final = 1
_LOCALHOST: Final = "127.0.0.1"
_OF_THIS_THREAD: Final = "/proc/thread-self/ns/net"
_CHUNK_BYTES: Final = 1 << 18
_libc: Final = ctypes.CDLL(None, use_errno=True)


class RegionNetwork:
    """The namespaces of regions, and the proxies between them.

    Args:
        regions: all of them; the first one has the namespace of this process.

    Raises:
        ServerNotAvailable: this process may not make namespaces.
    """

    def __init__(self, regions: Iterable[str]) -> None:
        self.delay_s = 0.0
        """How long data is on its way between two regions, in each direction. It may be changed at any time."""
        self._connections: dict[int, set[asyncio.Task[None]]] = {}
        """By the port to which they were made."""
        first, *others = regions
        self._namespaces = {first: os.open(_OF_THIS_THREAD, os.O_RDONLY)}
        try:
            for region in others:
                # A thread that has left its namespace ends with it.
                with ThreadPoolExecutor(1) as thread:
                    self._namespaces[region] = thread.submit(_new_namespace).result()
        except OSError as error:
            self._close_namespaces()
            raise ServerNotAvailable(f"a distance between regions needs root: {error}") from None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    @contextmanager
    def inside(self, region: str) -> Iterator[None]:
        """Let this thread be in a region until the block ends. The sockets and processes that it starts there stay there."""
        home = os.open(_OF_THIS_THREAD, os.O_RDONLY)
        try:
            _enter(self._namespaces[region])
            yield
        finally:
            _enter(home)
            os.close(home)

    def publish(self, region: str, port: int) -> None:
        """Let all other regions reach a port of this region, which need not be open yet."""
        self._connections[port] = set()
        for other in self._namespaces:
            if other != region:
                asyncio.run_coroutine_threadsafe(self._listen(other, region, port), self._loop).result()

    def lose(self, port: int) -> None:
        """Lose everything that is on its way from and to a port, as if its machine had lost its power. New data gets through."""

        async def cancel() -> None:
            await _cancel(self._connections[port])

        asyncio.run_coroutine_threadsafe(cancel(), self._loop).result()

    def close(self) -> None:
        """End all connections between regions."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._close_namespaces()

    async def _end(self) -> None:
        await _cancel(task for task in asyncio.all_tasks() if task is not asyncio.current_task())

    async def _listen(self, here: str, there: str, port: int) -> None:
        async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._connections[port].add(task)
            task.add_done_callback(self._connections[port].discard)
            with self.inside(there):
                far = socket.socket()
            far.setblocking(False)
            try:
                await asyncio.get_running_loop().sock_connect(far, (_LOCALHOST, port))
            except OSError:
                far.close()
                writer.close()
                return
            far_reader, far_writer = await asyncio.open_connection(sock=far)
            for end in (writer, far_writer):  # otherwise data in two parts takes 40 ms longer than without a proxy
                end.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.gather(self._carry(reader, far_writer), self._carry(far_reader, writer))

        with self.inside(here):
            listener = socket.create_server((_LOCALHOST, port))
        server = await asyncio.start_server(join, sock=listener, limit=_CHUNK_BYTES)
        asyncio.ensure_future(server.serve_forever())  # noqa: RUF006 - the loop keeps it

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass data on in one direction until its sender or its receiver ends."""
        clock_s = asyncio.get_running_loop().time
        on_the_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def receive() -> None:
            data = b"."
            while data:
                try:
                    data = await reader.read(_CHUNK_BYTES)
                except OSError:
                    data = b""
                on_the_way.put_nowait((clock_s() + self.delay_s, data))

        receiving = asyncio.ensure_future(receive())
        try:
            while not writer.is_closing():
                due_s, data = await on_the_way.get()
                if (wait_s := due_s - clock_s()) > 0:
                    await asyncio.sleep(wait_s)
                if not data:
                    break
                writer.write(data)
        finally:
            receiving.cancel()
            writer.close()

    def _close_namespaces(self) -> None:
        for namespace in self._namespaces.values():
            os.close(namespace)


async def _cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and wait for their end."""
    cancelled = [*tasks]
    for each in cancelled:
        each.cancel()
    await asyncio.gather(*cancelled, return_exceptions=True)


def _new_namespace() -> int:
    """Move this thread into a new namespace with a working 127.0.0.1. Return the namespace's file."""
    _check(_libc.unshare(_CLONE_NEWNET))
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP))
    return os.open(_OF_THIS_THREAD, os.O_RDONLY)


def _enter(namespace: int) -> None:
    _check(_libc.setns(namespace, _CLONE_NEWNET))


def _check(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
