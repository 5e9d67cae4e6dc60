"""A load process that speaks SQS: by raw keep-alive connections, or by boto3.

Always true: every message has its number in its body. Each number that was sent must
be received once if messages are received at all, else the process fails; so do an
error reply and an entry of a batch that fails. Knows nothing of servers.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Final, Protocol

import uvloop

from perf.lib.race import Broken

NUMBER_CHARS: Final = 16
VISIBILITY_S: Final = 600
_NUMBERS_MAX: Final = 4_000_000
_WAIT_S: Final = 1
_HEAD: Final = (
    b"POST / HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/x-amz-json-1.0\r\n"
    b"X-Amz-Target: AmazonSQS.%b\r\namz-sdk-invocation-id: %b\r\nContent-Length: %d\r\n\r\n"
)


@dataclass(slots=True, frozen=True)
class SqsLoad:
    """The work of the process.

    Attributes:
        client: raw or boto3.
        work: send, or cycle: send, receive, delete.
        batch: messages of a call, 1 to 10.
        callers: connections of the raw client, or threads of boto3.
    """

    client: str
    work: str
    batch: int
    callers: int
    body_bytes: int
    port: int
    queue_url: str
    warmup_s: float
    seconds: float


class Tally:
    """The numbers that were sent and received, and what happened in the window. For one thread, or under `lock`."""

    def __init__(self, load: SqsLoad) -> None:
        self.lock = threading.Lock()
        self.is_sending = True
        self.in_window = 0
        self.latencies_ms: list[float] = []
        self._is_cycle = load.work == "cycle"
        self._padding = "x" * max(0, load.body_bytes - NUMBER_CHARS)
        self._numbers = itertools.count()
        self._sent = bytearray(_NUMBERS_MAX)
        self._received = bytearray(_NUMBERS_MAX)
        self._is_window = False
        self.sent_count = self.received_count = 0

    def bodies(self, count: int) -> list[str]:
        """Return the bodies of new messages."""
        return [f"{number:0{NUMBER_CHARS}d}{self._padding}" for number in itertools.islice(self._numbers, count)]

    def on_sent(self, bodies: Iterable[str], begun_s: float) -> None:
        for body in bodies:
            self._sent[int(body[:NUMBER_CHARS])] = 1
            self.sent_count += 1
            self.in_window += self._is_window and not self._is_cycle
        if self._is_window:
            self.latencies_ms.append((time.perf_counter() - begun_s) * 1_000)

    def on_deleted(self, bodies: Iterable[str]) -> None:
        for body in bodies:
            number = int(body[:NUMBER_CHARS])
            if self._received[number]:
                raise Broken(f"message {number} was received twice")
            self._received[number] = 1
            self.received_count += 1
            self.in_window += self._is_window

    def open_window(self) -> None:
        self._is_window = True

    def close_window(self) -> None:
        self._is_window = False
        self.is_sending = False

    @property
    def is_done(self) -> bool:
        return not self.is_sending and (not self._is_cycle or self.received_count >= self.sent_count)

    def check(self) -> None:
        """Raise Broken if a number was lost."""
        if self._is_cycle and self._sent != self._received:
            raise Broken(f"{self.sent_count} messages were sent, and {self.received_count} received")


def run(load: SqsLoad, pipe: Connection) -> None:
    """Run as the process's main function. Send "begun" and "ended" at the ends of the window, then the figures or an error."""
    tally = Tally(load)
    try:
        if load.client == "raw":
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(_run_raw(load, tally, pipe))
        else:
            _run_boto3(load, tally, pipe)
        tally.check()
        ordered = sorted(tally.latencies_ms)
        pipe.send({"messages": tally.in_window, "latencies_ms": ordered, "sent": tally.sent_count})
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {error}")
        raise


# ------------------------------------------------------------------------- raw


class RawConnection(asyncio.Protocol):
    """A keep-alive connection with one request at a time."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._data = b""
        self._reply: asyncio.Future[bytes] | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def connection_lost(self, error: Exception | None) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(Broken(f"the host closed a connection: {error}"))

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, end, body = self._data.partition(b"\r\n\r\n")
        if not end:
            return
        start = head.lower().index(b"content-length:") + len(b"content-length:")
        if len(body) < int(head[start:].partition(b"\r\n")[0]):
            return
        self._data = b""
        assert self._reply is not None
        if head[9:12] == b"200":
            self._reply.set_result(body)
        else:
            self._reply.set_exception(Broken(f"{head[:40]!r}: {body[:200]!r}"))

    async def call(self, action: bytes, request: bytes, call_id: int) -> Any:
        """Return the reply. Raises Broken if it is an error."""
        assert self._transport is not None
        self._reply = asyncio.get_running_loop().create_future()
        invocation_id = b"perf-%032x" % call_id
        self._transport.write(_HEAD % (self._port, action, invocation_id, len(request)) + request)
        return json.loads(await self._reply)


async def _run_raw(load: SqsLoad, tally: Tally, pipe: Connection) -> None:
    loop = asyncio.get_running_loop()
    connections = [
        (await loop.create_connection(lambda: RawConnection(load.port), "127.0.0.1", load.port))[1]
        for _ in range(load.callers)
    ]
    call_ids = itertools.count(int(time.time() * 1_000) << 40)
    callers = [asyncio.ensure_future(_call_raw(load, tally, found, call_ids)) for found in connections]
    watching = asyncio.ensure_future(_open_and_close(load, tally, pipe))
    await asyncio.gather(watching, *callers)


async def _open_and_close(load: SqsLoad, tally: Tally, pipe: Connection) -> None:
    await asyncio.sleep(load.warmup_s)
    tally.open_window()
    pipe.send("begun")
    await asyncio.sleep(load.seconds)
    tally.close_window()
    pipe.send("ended")


async def _call_raw(load: SqsLoad, tally: Tally, connection: RawConnection, call_ids: Iterable[int]) -> None:
    numbers = iter(call_ids)
    receive = json.dumps(_receive_request(load)).encode()
    while not tally.is_done:
        if tally.is_sending:
            bodies = tally.bodies(load.batch)
            action, request = _send_request(load, bodies)
            begun_s = time.perf_counter()
            _check_batch(await connection.call(action, json.dumps(request).encode(), next(numbers)))
            tally.on_sent(bodies, begun_s)
        if load.work == "cycle":
            found = (await connection.call(b"ReceiveMessage", receive, next(numbers))).get("Messages")
            if found:
                action, request = _delete_request(load, [message["ReceiptHandle"] for message in found])
                _check_batch(await connection.call(action, json.dumps(request).encode(), next(numbers)))
                tally.on_deleted([message["Body"] for message in found])


def _send_request(load: SqsLoad, bodies: Sequence[str]) -> tuple[bytes, Any]:
    if load.batch == 1:
        return b"SendMessage", {"QueueUrl": load.queue_url, "MessageBody": bodies[0]}
    entries = [{"Id": str(place), "MessageBody": body} for place, body in enumerate(bodies)]
    return b"SendMessageBatch", {"QueueUrl": load.queue_url, "Entries": entries}


def _receive_request(load: SqsLoad) -> dict[str, Any]:
    return {"QueueUrl": load.queue_url, "MaxNumberOfMessages": load.batch, "WaitTimeSeconds": _WAIT_S}


def _delete_request(load: SqsLoad, handles: Sequence[str]) -> tuple[bytes, Any]:
    if load.batch == 1:
        return b"DeleteMessage", {"QueueUrl": load.queue_url, "ReceiptHandle": handles[0]}
    entries = [{"Id": str(place), "ReceiptHandle": handle} for place, handle in enumerate(handles)]
    return b"DeleteMessageBatch", {"QueueUrl": load.queue_url, "Entries": entries}


def _check_batch(reply: Any) -> None:
    if reply.get("Failed"):
        raise Broken(f"an entry of a batch failed: {reply['Failed'][0]}")


# ----------------------------------------------------------------------- boto3


class _Sqs(Protocol):
    """The calls of boto3's client that are used."""

    def send_message(self, **parameters: Any) -> Any: ...
    def send_message_batch(self, **parameters: Any) -> Any: ...
    def receive_message(self, **parameters: Any) -> Any: ...
    def delete_message(self, **parameters: Any) -> Any: ...
    def delete_message_batch(self, **parameters: Any) -> Any: ...


def _run_boto3(load: SqsLoad, tally: Tally, pipe: Connection) -> None:
    clients = [client(load.port) for _ in range(load.callers)]
    errors: list[Exception] = []

    def call(sqs: _Sqs) -> None:
        try:
            _call_boto3(load, tally, sqs)
        except Exception as error:
            errors.append(error)
            tally.is_sending = False

    threads = [threading.Thread(target=call, args=(sqs,)) for sqs in clients]
    for thread in threads:
        thread.start()
    time.sleep(load.warmup_s)
    tally.open_window()
    pipe.send("begun")
    time.sleep(load.seconds)
    tally.close_window()
    pipe.send("ended")
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def client(port: int) -> Any:
    """Return boto3's client of a host."""
    import boto3

    return boto3.client(
        "sqs",
        endpoint_url=f"http://127.0.0.1:{port}",
        region_name="us-east-1",
        aws_access_key_id="key",
        aws_secret_access_key="secret",
    )


def _call_boto3(load: SqsLoad, tally: Tally, sqs: _Sqs) -> None:
    sends = {b"SendMessage": sqs.send_message, b"SendMessageBatch": sqs.send_message_batch}
    deletes = {b"DeleteMessage": sqs.delete_message, b"DeleteMessageBatch": sqs.delete_message_batch}
    while not tally.is_done:
        if tally.is_sending:
            with tally.lock:
                bodies = tally.bodies(load.batch)
            action, request = _send_request(load, bodies)
            begun_s = time.perf_counter()
            _check_batch(sends[action](**request))
            with tally.lock:
                tally.on_sent(bodies, begun_s)
        if load.work == "cycle":
            found = sqs.receive_message(**_receive_request(load)).get("Messages")
            if found:
                action, request = _delete_request(load, [message["ReceiptHandle"] for message in found])
                _check_batch(deletes[action](**request))
                with tally.lock:
                    tally.on_deleted([message["Body"] for message in found])
