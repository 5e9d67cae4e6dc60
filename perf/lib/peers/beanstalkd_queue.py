"""beanstalkd, which fsyncs its log after each job (`-f 0`), and an asyncio client that pipelines.

Always true: the calls of a batch are commands that are sent together, as beanstalkd
has none for several jobs; each has its own reply. A reserved job belongs to its
connection and returns at once when that ends. Knows nothing of how load is offered
or timed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from foqs.dev.server_process import find_program, give_to_user, run_program, unprivileged_user
from perf.lib.caller import NOTHING, Batch, Caller, Put, Taken, all_durable
from perf.lib.payload import filler, numbered
from perf.lib.peers.peer import Peer

PRIORITY: Final = 1024
_TTR_S: Final = 30
_JOB_BYTES_MAX: Final = 1 << 20
_READ_BYTES_MAX: Final = 1 << 26


class Refused(Exception):
    """beanstalkd gave another reply than expected."""


class Beanstalkd(Peer):
    """beanstalkd in an own folder, on a socket."""

    name = "beanstalkd"

    def __init__(self) -> None:
        super().__init__()
        self.place = str(self.folder / "s")
        self.version = ""

    def set_up(self) -> None:
        program = find_program("beanstalkd", "beanstalkd")
        self.version = run_program([program, "-v"]).split()[-1]
        (self.folder / "log.d").mkdir()
        user = unprivileged_user("beanstalkd")
        for path in (self.folder, self.folder / "log.d"):
            give_to_user(path, user)
        self.start("-f", "0")

    def start(self, *options: str) -> None:
        """Start it on its log."""
        program = find_program("beanstalkd", "beanstalkd")
        where = ["-l", f"unix:{self.place}", "-b", str(self.folder / "log.d"), "-z", str(_JOB_BYTES_MAX)]
        self.launch(
            [program, *where, *options],
            lambda: asyncio.run(self._answers()),
            cwd=self.folder,
            user=unprivileged_user("beanstalkd"),
        )

    async def _answers(self) -> bool:
        try:
            connection = await connect(self.place)
        except OSError:
            return False
        await connection.close()
        return True

    def waiting(self) -> int:
        return asyncio.run(self._waiting())

    async def _waiting(self) -> int:
        connection = await connect(self.place)
        lines = (await connection.stats()).decode().splitlines()
        await connection.close()
        found = dict(line.split(": ", 1) for line in lines if ": " in line)
        return sum(int(found[f"current-jobs-{state}"]) for state in ("ready", "reserved", "delayed", "buried"))

    def fill(self, count: int, payload_bytes: int) -> None:
        self.stop()
        self.start("-F")
        asyncio.run(self._fill(count, filler(payload_bytes)))
        self.stop()
        self.start("-f", "0")

    async def _fill(self, count: int, rest: bytes) -> None:
        connection = await connect(self.place)
        for start in range(0, count, _FILL_JOBS):
            numbers = range(start, min(count, start + _FILL_JOBS))
            await connection.put(Batch(["t0"] * len(numbers), [numbered(number, rest) for number in numbers]))
        await connection.close()


_FILL_JOBS: Final = 1_000


async def connect(place: str, topics: int = 1) -> BeanstalkdCaller:
    """Connect to a socket, and watch the tubes of all topics."""
    reader, writer = await asyncio.open_unix_connection(place, limit=_READ_BYTES_MAX)
    found = BeanstalkdCaller(reader, writer)
    await found.watch([f"t{number}" for number in range(topics)])
    return found


async def beanstalkd_caller(place: str, topics: int) -> Caller:
    return await connect(place, topics)


class BeanstalkdCaller:
    """One connection. It must delete the jobs that it reserved."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._used = ""

    async def watch(self, tubes: Sequence[str]) -> None:
        self._writer.write("".join(f"watch {tube}\r\n" for tube in tubes).encode())
        for _ in tubes:
            await self._reply(b"WATCHING ")

    async def put(self, items: Batch) -> Put:
        parts: list[bytes] = []
        used: list[bool] = []
        for topic, payload in zip(items.topics, items.payloads, strict=True):
            if topic != self._used:
                parts.append(b"use %b\r\n" % topic.encode())
                self._used = topic
                used.append(True)
            parts.append(b"put %d 0 %d %d\r\n%b\r\n" % (PRIORITY, _TTR_S, len(payload), payload))
            used.append(False)
        self._writer.write(b"".join(parts))
        for is_use in used:
            await self._reply(b"USING " if is_use else b"INSERTED ")
        return all_durable(items)

    async def take(self, wants: Mapping[str, int], wait_ms: int) -> Taken:
        """Reserve as many jobs as are wanted, of all topics: a connection watches its tubes, not a call."""
        count = sum(wants.values())
        self._writer.write(
            b"reserve-with-timeout %d\r\n" % (1 if wait_ms else 0) + b"reserve-with-timeout 0\r\n" * (count - 1)
        )
        ids, payloads = [], []
        for _ in range(count):
            line = await self._reader.readuntil(b"\r\n")
            if line.startswith(b"RESERVED "):
                _, number, size = line.split()
                payload = await self._reader.readexactly(int(size) + 2)
                ids.append(number)
                payloads.append(payload[:-2])
            elif not line.startswith((b"TIMED_OUT", b"DEADLINE_SOON")):
                raise Refused(line.decode())
        return (ids, payloads) if ids else NOTHING

    async def done(self, handles: Sequence[Any]) -> None:
        self._writer.write(b"".join([b"delete %b\r\n" % number for number in handles]))
        for _ in handles:
            await self._reply(b"DELETED")

    async def stats(self) -> bytes:
        self._writer.write(b"stats\r\n")
        size = int((await self._reply(b"OK ")).split()[1])
        return (await self._reader.readexactly(size + 2))[:-2]

    async def close(self) -> None:
        self._writer.close()

    async def _reply(self, expected: bytes) -> bytes:
        line = await self._reader.readuntil(b"\r\n")
        if not line.startswith(expected):
            raise Refused(f"{line.decode().strip()} in place of {expected.decode()}")
        return line
