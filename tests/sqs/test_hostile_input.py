"""Bytes that no client sends: an error that SDKs know or a clean close, and memory within bounds."""

from __future__ import annotations

import gzip
import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.poll import until
from tests.support.processes import quick_host
from tests.support.sqs_host import SqsHost, sqs_client

pytestmark = [pytest.mark.process]

MEMORY_BYTES_MAX: Final = 100 << 20
"""The most by which the host may grow over all of these tests."""
HEAD: Final = (
    b"POST / HTTP/1.1\r\nHost: q.example\r\nX-Amz-Target: AmazonSQS.SendMessage\r\nx-amzn-query-mode: true\r\n"
    b"Content-Type: application/x-amz-json-1.0\r\n"
)
CONNECTIONS_MAX: Final = 50


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqsHost]:
    """A host with few connections, and a queue `mail`."""
    with SqsHost(tmp_path_factory.mktemp("hostile"), {"rpc.connections_max": CONNECTIONS_MAX}) as host:
        host.start()
        sqs = sqs_client(host.endpoint)
        queue = sqs.create_queue(QueueName="mail")["QueueUrl"]
        before = resident_bytes(host)
        yield host
        assert resident_bytes(host) - before < MEMORY_BYTES_MAX
        sqs.send_message(QueueUrl=queue, MessageBody="still served")
        assert "unexpected error" not in host.log
        assert "Traceback" not in host.log


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqsHost]:
    """A host that gives up a stalled request soon. A busy machine can stall an honest one for as long."""
    command = quick_host(rpc={"stall_timeout_ms": 700})
    with SqsHost(tmp_path_factory.mktemp("impatient"), command=command) as host:
        host.start()
        yield host
        assert "Traceback" not in host.log


def resident_bytes(host: SqsHost) -> int:
    lines = Path(f"/proc/{host.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1_024 for line in lines if line.startswith("VmRSS"))


@contextmanager
def connected(host: SqsHost) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", host.sqs_port), timeout=30) as connection:
        yield connection


def answer(connection: socket.socket) -> tuple[int, Any]:
    """Return the status and the parsed body of a reply; status 0 if the host closed without one."""
    data = b""
    while b"\r\n\r\n" not in data:
        part = receive(connection)
        if not part:
            assert data == b"", data
            return 0, None
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")
    )
    while len(body) < length:
        body += receive(connection)
    try:
        parsed = json.loads(body)
    except ValueError:
        parsed = body
    return int(head.split()[1]), parsed


def receive(connection: socket.socket) -> bytes:
    try:
        return connection.recv(65_536)
    except ConnectionResetError:
        return b""


def exchange(host: SqsHost, data: bytes) -> tuple[int, Any]:
    with connected(host) as connection:
        with suppress(ConnectionError):  # the host may refuse it before all is sent
            connection.sendall(data)
        return answer(connection)


def post(host: SqsHost, body: bytes, head: bytes = HEAD) -> tuple[int, Any]:
    return exchange(host, head + b"Content-Length: %d\r\n\r\n" % len(body) + body)


def message(body: str) -> bytes:
    return json.dumps({"QueueUrl": "mail", "MessageBody": body}).encode()


@pytest.mark.parametrize(
    ("body", "shape"),
    [
        (b"{", "SerializationException"),
        (b"[" * 60_000, "SerializationException"),
        (b'{"a":' * 10_000, "SerializationException"),
        (b"\xff\xfe", "SerializationException"),
        (b'{"QueueUrl": "mail", "QueueUrl": "mail"}', "SerializationException"),
        (b'{"QueueUrl": 1}', "SerializationException"),
        (b'{"QueueUrl": "mail", "MessageBody": 1e999}', "SerializationException"),
        (b'{"QueueUrl": "mail", "MessageBody": "\xed\xa0\x80"}', "SerializationException"),
        (b'{"QueueUrl": "mail", "MessageBody": "\\ud800"}', "InvalidMessageContents"),
        (b'{"QueueUrl": "\\ud800", "MessageBody": "x"}', "QueueDoesNotExist"),
        (message("\0"), "InvalidMessageContents"),
        (message("￾"), "InvalidMessageContents"),
        (message(""), "MissingRequiredParameterException"),
        (b'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>', "SerializationException"),
        (gzip.compress(b"0" * (1 << 20), mtime=0), "SerializationException"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_a_wrong_body_gets_an_error_that_sdks_know(guarded: SqsHost, body: bytes, shape: str) -> None:
    status, found = post(guarded, body)
    assert (status, found["__type"].rpartition("#")[2]) == (400, shape)


def test_a_compressed_body_is_not_decompressed(guarded: SqsHost) -> None:
    bomb = gzip.compress(b"0" * (32 << 20))
    status, found = post(guarded, bomb, HEAD + b"Content-Encoding: gzip\r\n")
    assert (status, found["__type"].rpartition("#")[2]) == (400, "SerializationException")


def test_a_body_that_is_too_long_is_refused_before_it_is_read(guarded: SqsHost) -> None:
    status, found = exchange(guarded, HEAD + b"Content-Length: 999999999999\r\n\r\n" + b"x" * 1_000)
    assert (status, found["__type"].rpartition("#")[2]) == (413, "RequestEntityTooLargeException")


def test_client_that_asks_first_gets_an_interim_reply_or_is_refused_before_its_body(guarded: SqsHost) -> None:
    body = message("x")
    with connected(guarded) as connection:
        for _ in range(2):
            connection.sendall(HEAD + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body))
            assert connection.recv(65_536) == b"HTTP/1.1 100 Continue\r\n\r\n"
            connection.sendall(body)
            status, found = answer(connection)
            assert (status, set(found)) == (200, {"MessageId", "MD5OfMessageBody"})
    with connected(guarded) as connection:
        connection.sendall(HEAD + b"Expect: 100-continue\r\nContent-Length: 9999999\r\n\r\n")
        status, _ = answer(connection)
        assert status == 413
        assert connection.recv(1) == b"", "the next request would be taken for the body"


def test_an_endless_body_in_chunks_is_refused_at_the_limit(guarded: SqsHost) -> None:
    chunk = b"4000\r\n" + b"x" * 0x4000 + b"\r\n"
    status, _ = exchange(guarded, HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 300)
    assert status in (0, 413)


@pytest.mark.parametrize(
    "data",
    [
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\nx\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nabc",
        HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        HEAD + b"Content-Length: -1\r\n\r\n",
        HEAD + b"Bad Header\x00: x\r\n\r\n",
        HEAD + b"".join(b"X-%d: y\r\n" % number for number in range(1_000)) + b"\r\n",
        HEAD + b"X-Long: " + b"y" * 100_000 + b"\r\n\r\n",
        b"POST /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 200,
        b"\x80\x01\x00\x01\x00\x00\x00\x04ping\x00\x00\x00\x01\x00",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x00" * 1_000,
    ],
    ids=lambda value: repr(value[-30:]),
)
def test_what_is_no_http_ends_with_an_error_or_a_close(guarded: SqsHost, data: bytes) -> None:
    status, _ = exchange(guarded, data)
    assert status in (0, 400, 413, 431)


@pytest.mark.parametrize(
    ("head", "shape"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n", "UnknownOperationException"),
        (HEAD.replace(b"SendMessage", b"Nothing"), "UnknownOperationException"),
        (HEAD.replace(b"AmazonSQS.", b"Other."), "UnknownOperationException"),
    ],
    ids=["GET", "unknown action", "another service"],
)
def test_other_requests_get_an_error_that_sdks_know(guarded: SqsHost, head: bytes, shape: str) -> None:
    status, found = post(guarded, b"", head)
    assert (status, found["__type"].rpartition("#")[2]) == (400, shape)


def test_a_connection_that_sends_no_head_is_closed(impatient: SqsHost) -> None:
    for start in (b"", b"POST / HTT"):
        with connected(impatient) as connection:
            connection.sendall(start)
            assert answer(connection) == (0, None)


def test_a_body_that_stalls_is_given_up(impatient: SqsHost) -> None:
    replies: list[tuple[int, Any]] = []

    def is_answered() -> bool:
        """Return whether there was a reply. There is none if a busy machine took as long between the connection and its head."""
        replies.append(exchange(impatient, HEAD + b"Content-Length: 100\r\n\r\n{"))
        return replies[-1] != (0, None)

    until(is_answered, "the body is given up")
    status, found = replies[-1]
    assert (status, found["__type"].rpartition("#")[2]) == (400, "SerializationException")


def test_a_body_that_comes_byte_by_byte_is_given_up(impatient: SqsHost) -> None:
    with connected(impatient) as connection:
        connection.sendall(HEAD + b"Content-Length: 1000\r\n\r\n")
        connection.settimeout(0.1)
        for _ in range(100):  # ten seconds, while the host's limit is less than one
            try:
                reply = connection.recv(65_536)
            except TimeoutError:
                connection.sendall(b" ")
            else:
                assert b"The request body was not complete within" in reply
                return
    pytest.fail("the host still waits for the body")


def test_connections_without_a_request_keep_no_other_out(guarded: SqsHost) -> None:
    with ExitStack() as held:
        for _ in range(2 * CONNECTIONS_MAX):
            held.enter_context(connected(guarded))
        assert post(guarded, message("x"))[0] == 200


FORM: Final = HEAD.replace(b"x-amz-json-1.0", b"x-www-form-urlencoded")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "MissingParameter"),
        (b"Action=Nothing", "InvalidAction"),
        (b"Action=SendMessage&QueueUrl=mail&MessageBody=%00", "InvalidMessageContents"),
        (b"Action=SendMessage&QueueUrl=mail&MessageBody=%ff", "MalformedInput"),
        (b"Action=SendMessage&QueueUrl=mail&QueueUrl=mail", "MalformedInput"),
        (b"Action=SendMessage&" + b"a=b&" * 10_000, "MalformedInput"),
        (b"Action=SendMessage&" + b"a." * 30_000 + b"=b", "MalformedInput"),
        (b'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>', "MissingParameter"),
        (gzip.compress(b"0" * (1 << 20), mtime=0), "MalformedInput"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_a_wrong_form_gets_an_error_of_the_query_protocol(guarded: SqsHost, body: bytes, code: str) -> None:
    status, found = post(guarded, body, FORM)
    assert status == 400
    assert f"<Code>{code}</Code>".encode() in found


def test_a_form_that_is_too_long_is_refused_in_xml(guarded: SqsHost) -> None:
    status, found = exchange(guarded, FORM + b"Content-Length: 999999999999\r\n\r\n" + b"x" * 1_000)
    assert (status, b"<Code>RequestEntityTooLarge</Code>" in found) == (413, True)
