"""A distance between the regions of a cluster on this machine: data takes time from one region to another.

Each region but the first has a network namespace of its own; the first one is where this process is. A port of 127.0.0.1
in one region can be reached under the same number in all others: a proxy passes the data on after the delay. So programs
need no other addresses, and nothing is between those of one region.

Always true: data of one connection arrives in order. It arrives also after its sender was killed, unless `lose` is called.
A connection has a limited number of bytes on the way in each direction; beyond it the sender waits, as for a slow receiver.
To connect takes no time. Namespaces need root. Knows nothing of databases and hosts.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import fcntl
import os
import socket
import struct
import threading
from collections.abc import Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

from foqs.dev.server_process import ServerNotAvailable

_CLONE_NEWNET: Final = 0x40000000
"""Of linux/sched.h."""
_SIOCSIFFLAGS: Final = 0x8914
"""Of linux/sockios.h."""
_IFF_UP: Final = 1
_LOCALHOST: Final = "127.0.0.1"
_OF_THIS_THREAD: Final = "/proc/thread-self/ns/net"
_CHUNK_BYTES: Final = 1 << 18
_ON_THE_WAY_BYTES_MAX: Final = 4 << 20
"""In one direction of a connection. About what a Linux socket has in flight at most by default."""
_REFUSALS: Final = (errno.EPERM, errno.ENOSYS, errno.EINVAL)
"""Errors of a kernel that allows no namespaces: to a user, in a container, or at all."""
_libc: Final = ctypes.CDLL(None, use_errno=True)
T = TypeVar("T")


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
        self._listeners: list[asyncio.Server] = []
        self._connections: dict[int, set[asyncio.Task[None]]] = {}
        """By the port to which they were made."""
        first, *others = regions
        self._namespaces = {first: os.open(_OF_THIS_THREAD, os.O_RDONLY)}
        try:
            for region in others:
                # A thread that has left its namespace ends with it.
                with ThreadPoolExecutor(1) as thread:
                    self._namespaces[region] = thread.submit(_new_namespace).result()
        except BaseException:
            self._close_namespaces()
            raise
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
        """Let all other regions reach a port of this region, which need not be open yet.

        Raises:
            ServerNotAvailable: the port is in use in another region.
        """
        self._connections[port] = set()
        for other in self._namespaces:
            if other != region:
                self._run(self._listen(other, region, port))

    def lose(self, port: int) -> None:
        """Lose everything that is on its way from and to a port, as if its machine had lost its power. New data gets through."""
        self._run(_cancel(self._connections[port]))

    def close(self) -> None:
        """End all connections between regions."""
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._close_namespaces()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _end(self) -> None:
        for listener in self._listeners:
            listener.close()
        await _cancel(task for tasks in self._connections.values() for task in tasks)

    async def _listen(self, here: str, there: str, port: int) -> None:
        def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            # Not a coroutine: asyncio would report each cancelled one as an error.
            task = asyncio.ensure_future(self._join(there, port, reader, writer))
            self._connections[port].add(task)
            task.add_done_callback(self._connections[port].discard)

        with self.inside(here):
            try:
                listener = socket.create_server((_LOCALHOST, port))
            except OSError as error:
                raise ServerNotAvailable(
                    f"port {port} of {there} cannot be reached from {here}, where something uses it: {error}"
                ) from None
        self._listeners.append(await asyncio.start_server(on_connection, sock=listener, limit=_CHUNK_BYTES))

    async def _join(self, there: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Connect to a port of another region, and pass data on in both directions until both ends are closed."""
        ends = [writer]
        try:
            far = await self._connect(there, port)
            if far is None:
                return
            far_reader, far_writer = await asyncio.open_connection(sock=far, limit=_CHUNK_BYTES)
            ends.append(far_writer)
            for end in ends:  # otherwise data in two parts takes 40 ms longer than without a proxy
                with suppress(OSError):  # it was reset meanwhile
                    end.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.TaskGroup() as directions:
                directions.create_task(self._carry(reader, far_writer))
                directions.create_task(self._carry(far_reader, writer))
            for end in ends:
                with suppress(OSError):
                    await end.wait_closed()
        finally:
            for end in ends:
                end.transport.abort()

    async def _connect(self, region: str, port: int) -> socket.socket | None:
        """Return a connection to a port of a region; None: nobody serves it."""
        with self.inside(region):
            far = socket.socket()
        far.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(far, (_LOCALHOST, port))
        except OSError:
            far.close()
            return None
        except BaseException:
            far.close()
            raise
        return far

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass data on in one direction until its sender or its receiver ends."""
        clock_s = asyncio.get_running_loop().time
        on_the_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        size_bytes = 0
        has_room = asyncio.Event()
        has_room.set()

        async def receive() -> None:
            nonlocal size_bytes
            data = b"."
            while data:
                await has_room.wait()
                try:
                    data = await reader.read(_CHUNK_BYTES)
                except OSError:
                    data = b""
                size_bytes += len(data)
                if size_bytes >= _ON_THE_WAY_BYTES_MAX:
                    has_room.clear()
                on_the_way.put_nowait((clock_s() + self.delay_s, data))

        async with asyncio.TaskGroup() as group:
            receiving = group.create_task(receive())
            try:
                while not writer.is_closing():
                    due_s, data = await on_the_way.get()
                    if (wait_s := due_s - clock_s()) > 0:
                        await asyncio.sleep(wait_s)
                    if not data:
                        break
                    writer.write(data)
                    await writer.drain()
                    size_bytes -= len(data)
                    if size_bytes < _ON_THE_WAY_BYTES_MAX:
                        has_room.set()
            except OSError:  # its receiver has ended
                pass
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
    try:
        _check(_libc.unshare(_CLONE_NEWNET))
    except OSError as error:
        if error.errno in _REFUSALS:
            raise ServerNotAvailable(f"a distance between regions needs root: {error}") from None
        raise
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP))
    return os.open(_OF_THIS_THREAD, os.O_RDONLY)


def _enter(namespace: int) -> None:
    _check(_libc.setns(namespace, _CLONE_NEWNET))


def _check(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
