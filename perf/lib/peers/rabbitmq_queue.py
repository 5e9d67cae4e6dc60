"""RabbitMQ: durable queues, persistent messages and publisher confirms.

Always true: a put returns when the broker has confirmed each message. A queue is of
the kind `classic`, with `x-max-priority`, or `quorum`, which has no priorities in
this version. Items of a call are pipelined, as AMQP has no call for several; the ack
of a call names its last message and so all before it on the channel. AMQP does not
confirm an ack. Knows nothing of how load is offered or timed.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from foqs.dev.server_process import (
    ServerNotAvailable,
    find_program,
    free_port,
    give_to_user,
    run_program,
    unprivileged_user,
)
from perf.lib.caller import NOTHING, Batch, Caller, Put, Taken, all_durable
from perf.lib.payload import NUMBER_BYTES, filler, numbered
from perf.lib.peers.peer import Peer

ARGUMENTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "classic": {"x-max-priority": 10},
    "quorum": {"x-queue-type": "quorum"},
}
PRIORITY: Final = 5
_SCRIPT: Final = "/usr/lib/rabbitmq/bin/rabbitmq-server"
_PREFETCHED_CALLS: Final = 2
_PERSISTENT: Final = 2
_FILL_POLL_S: Final = 0.2


class RabbitMq(Peer):
    """A broker with its own Erlang port mapper, in an own folder.

    Args:
        kind: of its queues, `classic` or `quorum`.
        topics: the number of queues.
    """

    name = "rabbitmq"

    def __init__(self, kind: str, topics: int = 1) -> None:
        super().__init__()
        self.kind = kind
        self.topics = topics
        self.port = free_port()
        self.place = f"127.0.0.1:{self.port}"
        self.version = ""
        self._mapper: subprocess.Popen[bytes] | None = None

    def set_up(self) -> None:
        if not Path(_SCRIPT).exists():
            raise ServerNotAvailable("rabbitmq-server is not installed: apt-get install rabbitmq-server")
        user = unprivileged_user("rabbitmq")
        give_to_user(self.folder, user)
        ports = str(free_port()), str(free_port())
        environment = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(self.folder),
            "ERL_EPMD_PORT": ports[0],
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_DIST_PORT": ports[1],
            "RABBITMQ_NODENAME": f"perf{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "data"),
            "RABBITMQ_LOG_BASE": str(self.folder / "logs"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq"),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_PID_FILE": str(self.folder / "pid"),
            # One process, which handles the signals itself, in place of a shell around it.
            "RUNNING_UNDER_SYSTEMD": "true",
        }
        (self.folder / "plugins").write_text("[].\n")
        (self.folder / "rabbitmq.conf").write_text("log.console.level = error\n")
        # Erlang would start one that outlives the broker.
        self._mapper = subprocess.Popen(
            [find_program("epmd", "erlang-base"), "-port", ports[0], "-address", "127.0.0.1"],
            env=environment, user=user, cwd=self.folder, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        self.launch([_SCRIPT], self._answers, cwd=self.folder, user=user, env=environment)
        self.version = run_program(["dpkg-query", "-W", "-f", "${Version}", "rabbitmq-server"]).split("-")[0]
        asyncio.run(self._declare())

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        super().stop(number)
        if self._mapper is not None:
            self._mapper.kill()
            self._mapper.wait()

    def _answers(self) -> bool:
        """Return whether it answers an AMQP header."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
                connection.sendall(b"AMQP\0\0\x09\1")
                return bool(connection.recv(1))
        except OSError:
            return False

    async def _declare(self) -> None:
        connection = await _connect(self.place)
        channel = await connection.channel()
        for number in range(self.topics):
            await channel.queue_declare(f"t{number}", durable=True, arguments=dict(ARGUMENTS[self.kind]))
        await connection.close()

    def fill(self, count: int, payload_bytes: int) -> None:
        asyncio.run(self._fill(count, filler(payload_bytes)))

    async def _fill(self, count: int, rest: bytes) -> None:
        """Publish without confirms, which is faster, until the queue has all."""
        from pamqp import commands

        connection = await _connect(self.place)
        channel = await connection.channel(publisher_confirms=False)
        for number in range(count):
            body = numbered(number, rest)
            properties = commands.Basic.Properties(
                delivery_mode=_PERSISTENT, priority=PRIORITY, message_id=body[:NUMBER_BYTES].decode()
            )
            # Now and then it waits until what it has written was sent.
            await channel.basic_publish(body, routing_key="t0", properties=properties, wait=number % 500 == 0)
        while (await channel.queue_declare("t0", passive=True)).message_count < count:  # noqa: ASYNC110 - it is asked
            await asyncio.sleep(_FILL_POLL_S)
        await connection.close()

    def waiting(self) -> int:
        return asyncio.run(self._waiting())

    async def _waiting(self) -> int:
        connection = await _connect(self.place)
        channel = await connection.channel()
        counts = [
            (await channel.queue_declare(f"t{number}", passive=True)).message_count for number in range(self.topics)
        ]
        await connection.close()
        return sum(counts)


class RabbitMqSession:
    """One connection whose callers have a channel each.

    Args:
        callers: how many of them there will be, if they consume; 0: they only put.
    """

    def __init__(self, place: str, batch: int, topics: int, callers: int = 0) -> None:
        self._place = place
        self._batch = batch
        self._topics = topics
        self._consumers = callers
        self._connection: Any = None
        self._callers = 0

    async def caller(self) -> Caller:
        if self._connection is None:
            self._connection = await _connect(self._place)
        caller = RabbitMqCaller(await self._connection.channel())
        if self._consumers:
            # With many topics each caller has its share of them.
            apart = self._topics >= self._consumers
            numbers = range(self._callers, self._topics, self._consumers) if apart else range(self._topics)
            await caller.subscribe(numbers, self._batch * _PREFETCHED_CALLS)
        self._callers += 1
        return caller

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()


class RabbitMqCaller:
    """One channel."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self._arrived: deque[Any] = deque()
        self._waiting: asyncio.Future[None] | None = None

    async def put(self, items: Batch) -> Put:
        from pamqp import commands

        async def one(topic: str, payload: bytes) -> Any:
            # The client would make up an id from random bytes, which costs more.
            properties = commands.Basic.Properties(
                delivery_mode=_PERSISTENT, priority=PRIORITY, message_id=payload[:NUMBER_BYTES].decode()
            )
            return await self._channel.basic_publish(payload, routing_key=topic, properties=properties, wait=False)

        if len(items.payloads) == 1:
            confirmed = [await one(items.topics[0], items.payloads[0])]
        else:
            confirmed = await asyncio.gather(*map(one, items.topics, items.payloads))
        refused = [found for found in confirmed if not isinstance(found, commands.Basic.Ack)]
        if refused:
            raise RuntimeError(f"the broker did not take {len(refused)} messages: {refused[0]}")
        return all_durable(items)

    async def take(self, wants: Mapping[str, int], wait_ms: int) -> Taken:
        """Take what the broker has sent, of all topics: a channel subscribes to queues, not a call."""
        if not self._arrived:
            self._waiting = asyncio.get_running_loop().create_future()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.05, wait_ms / 1000)):
                    await self._waiting
            self._waiting = None
            if not self._arrived:
                return NOTHING
        count = min(len(self._arrived), sum(wants.values()))
        found = [self._arrived.popleft() for _ in range(count)]
        return [message.delivery_tag for message in found], [message.body for message in found]

    async def subscribe(self, topics: Sequence[int], ahead: int) -> None:
        """Have the broker send the items of these topics, up to `ahead` of them before their acks."""
        # Quorum queues know no bound for a whole channel, so it holds for each queue.
        await self._channel.basic_qos(prefetch_count=ahead if len(topics) == 1 else max(1, ahead // len(topics) * 2))
        for number in topics:
            await self._channel.basic_consume(f"t{number}", self._arrive)

    async def _arrive(self, message: Any) -> None:
        self._arrived.append(message)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def done(self, handles: Sequence[Any]) -> None:
        await self._channel.basic_ack(handles[-1], multiple=True)

    async def close(self) -> None:
        await self._channel.close()


async def _connect(place: str) -> Any:
    import aiormq

    return await aiormq.connect(f"amqp://guest:guest@{place}/")
