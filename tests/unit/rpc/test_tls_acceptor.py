"""TLS with the public client: which certificates are trusted, and the errors on both sides."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import warnings
from collections.abc import Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import uvloop

from foqs.access.authenticator import AuthenticationLimits, Authenticator
from foqs.access.keyring import TlsFiles, read_keyring
from foqs.rpc.rpc_limits import RpcLimits
from foqs_client import Client, Item, Overloaded, PermissionDenied, Tls, Unauthenticated, Unreachable
from foqs_contract.call_table import Permission
from tests.support.access import EditableGrants, RecordingObserver
from tests.support.builders import rpc_limits
from tests.support.certificates import Authority
from tests.support.fake_queue import FakeQueue
from tests.support.poll import soon
from tests.support.rpc_server import ServedQueue, serve_queue

LIMITS = rpc_limits(reply_grace_ms=200, handshake_timeout_ms=30_000)
FEW = rpc_limits(reply_grace_ms=200, handshake_timeout_ms=5_000, handshakes_max=3)
"""For handshakes that are to take too long, once all of them have begun."""
TIMEOUT_MS = 30_000
RETRIES_MS = 1_000
"""The timeout of a call that is retried until its time is over."""
LOOPS: list[Callable[[], asyncio.AbstractEventLoop]] = [asyncio.new_event_loop, uvloop.new_event_loop]


@pytest.fixture(params=LOOPS, ids=["asyncio", "uvloop"])
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=request.param) as own:
        yield own


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("other"), "Other CA")


class Secure:
    """A TLS host, the gate of its queue, and its counts."""

    def __init__(
        self,
        authority: Authority,
        *,
        expired: bool = False,
        names_issuer: bool = True,
        ask: Authority | None = None,
    ) -> None:
        files = authority.sign("host", expired=expired, names_issuer=names_issuer)
        asked = str(ask.file) if ask is not None else ""
        keyring = read_keyring({}, TlsFiles(str(files.cert), str(files.key), asked))
        assert keyring.tls_context is not None
        self.context = keyring.tls_context
        self.granted = EditableGrants(Permission.ENQUEUE)
        self.counted = RecordingObserver()
        self.gate = (
            Authenticator(keyring, ["boss"], self.granted, self.counted, AuthenticationLimits(failure_delay_s=0.01))
            if ask is not None
            else None
        )
        self.failed = 0

    def count(self) -> None:
        self.failed += 1

    def run(
        self, runner: asyncio.Runner, main: Callable[[ServedQueue], Awaitable[Any]], limits: RpcLimits = LIMITS
    ) -> None:
        async def serve_main() -> None:
            async with (
                asyncio.timeout(60),
                serve_queue(
                    FakeQueue(), limits, context=self.context, failed=self.count, authenticator=self.gate
                ) as host,
            ):
                await main(host)

        runner.run(serve_main())


async def enqueued(url: str, timeout_ms: int = TIMEOUT_MS, **options: Any) -> bool:
    async with Client(url, timeout_ms=timeout_ms, **options) as client:
        return (await client.enqueue([Item("t")]))[0].id is not None


async def message(url: str, **options: Any) -> str:
    with pytest.raises(Unreachable) as caught:
        await enqueued(url, **options)
    return caught.value.message


async def message_of_retries(url: str, **options: Any) -> str:
    """Make a call until it fails after an attempt, and return its error. A call without time for an attempt does not count."""
    error = "there was no time"
    while "there was no time" in error:
        error = await message(url, timeout_ms=RETRIES_MS, **options)
    return error


def test_calls_go_through_tls(runner: asyncio.Runner, authority: Authority) -> None:
    async def main(host: ServedQueue) -> None:
        tls = Tls(ca_file=authority.file)
        assert await enqueued(host.url, tls=tls)
        assert await enqueued(host.url.replace("127.0.0.1", "localhost"), tls=tls)
        async with Client(host.url, timeout_ms=TIMEOUT_MS, tls=tls) as client:
            payloads = [b"x" * 10_000 for _ in range(300)]
            await asyncio.gather(*(client.enqueue([Item("large", payload)] * 10) for payload in payloads))
            got = await client.dequeue({"large": 1_000})
            assert [delivery.payload for delivery in got] == [payloads[0]] * 1_000

    secure = Secure(authority)
    secure.run(runner, main)
    assert secure.failed == 0


def test_handshake_that_is_cancelled_before_it_begins_leaves_no_socket_open(
    runner: asyncio.Runner, authority: Authority
) -> None:
    async def main(host: ServedQueue) -> None:
        assert host.acceptor is not None
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        extra = {"socket": theirs, "peername": ("10.0.0.1", 5)}
        with ours, warnings.catch_warnings(record=True) as left_open:
            warnings.simplefilter("always", ResourceWarning)
            host.acceptor.on_accepted(cast(Any, SimpleNamespace(get_extra_info=extra.get, abort=theirs.close)))
            host.acceptor.close()
            ours.setblocking(False)
            assert await asyncio.get_running_loop().sock_recv(ours, 1) == b""
        assert [str(warning.message) for warning in left_open] == []

    Secure(authority).run(runner, main)


@pytest.mark.parametrize(
    ("expired", "trusts_other", "words"),
    [(False, True, "certificate"), (True, False, "expired")],
)
def test_a_host_that_is_not_trusted_is_not_called(
    runner: asyncio.Runner,
    authority: Authority,
    stranger: Authority,
    caplog: pytest.LogCaptureFixture,
    expired: bool,
    trusts_other: bool,
    words: str,
) -> None:
    secure = Secure(authority, expired=expired)

    async def main(host: ServedQueue) -> None:
        ca = stranger if trusts_other else authority
        with pytest.raises(Unreachable, match=words) as caught:
            async with Client(host.url, timeout_ms=60_000, tls=Tls(ca_file=ca.file)) as client:
                await client.enqueue([Item("t")])
        assert "give the CA" in caught.value.message
        await soon(lambda: secure.failed > 0)

    secure.run(runner, main)
    assert secure.failed == 1, "it is tried once"
    assert "it may not trust this host's certificate" in caplog.text


def test_surplus_connection_is_refused_through_tls(runner: asyncio.Runner, authority: Authority) -> None:
    async def main() -> None:
        limits = rpc_limits(connections_max=1, reply_grace_ms=200)
        async with asyncio.timeout(60), serve_queue(FakeQueue(), limits, context=Secure(authority).context) as host:
            options: dict[str, Any] = {"timeout_ms": TIMEOUT_MS, "tls": Tls(ca_file=authority.file)}
            async with Client(host.url, **options) as first, Client(host.url, **options) as second:
                assert await first.dequeue({"t": 1}) == []
                with pytest.raises(Overloaded):
                    await second.dequeue({"t": 1})
                assert await first.dequeue({"t": 1}) == []

    runner.run(main())


def test_a_client_certificate_is_a_principal(runner: asyncio.Runner, authority: Authority) -> None:
    secure = Secure(authority, ask=authority)

    async def main(host: ServedQueue) -> None:
        orders, boss, guest = (authority.sign(name) for name in ("orders", "boss", "guest"))

        def shown(files: Any) -> Tls:
            return Tls(ca_file=authority.file, cert_file=files.cert, key_file=files.key)

        assert await enqueued(host.url, tls=shown(orders))
        assert await enqueued(host.url, tls=shown(boss))
        assert secure.counted.principals == ["orders", "boss"]
        with pytest.raises(PermissionDenied, match="'guest' needs the grant ENQUEUE"):
            await enqueued(host.url, tls=shown(guest))
        with pytest.raises(Unauthenticated):
            await enqueued(host.url, tls=Tls(ca_file=authority.file))
        both = authority.sign("orders", "boss")
        with pytest.raises(Unauthenticated):
            await enqueued(host.url, tls=shown(both))

    secure.run(runner, main)


@pytest.mark.parametrize("expired", [False, True])
def test_a_certificate_of_another_ca_and_an_expired_one_are_refused(
    runner: asyncio.Runner,
    authority: Authority,
    stranger: Authority,
    caplog: pytest.LogCaptureFixture,
    expired: bool,
) -> None:
    secure = Secure(authority, ask=authority)

    async def main(host: ServedQueue) -> None:
        files = (authority if expired else stranger).sign("orders", expired=expired)
        tls = Tls(ca_file=authority.file, cert_file=files.cert, key_file=files.key)
        assert "may not accept the client's certificate" in await message_of_retries(host.url, tls=tls)

    secure.run(runner, main)
    assert secure.counted.principals == []
    assert "its certificate is not accepted" in caplog.text
    if expired:
        assert "expired" in caplog.text


def test_client_without_tls_learns_that_the_port_needs_it(
    runner: asyncio.Runner, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(host: ServedQueue) -> None:
        assert "begin its address with foqss://" in await message(host.url.replace("foqss", "foqs"))

    Secure(authority).run(runner, main)
    assert "it does not speak TLS" in caplog.text


def test_client_with_tls_learns_that_the_port_has_none(
    runner: asyncio.Runner, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> str:
        async with serve_queue(FakeQueue()) as host:
            return await message_of_retries(host.url.replace("foqs", "foqss"), tls=Tls(ca_file=authority.file))

    assert "write foqs:// in its address" in runner.run(main())
    assert "a TLS client" in caplog.text


def test_slow_handshakes_are_limited_in_number_and_time(
    runner: asyncio.Runner, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    secure = Secure(authority)

    async def main(host: ServedQueue) -> None:
        slow = [await asyncio.open_connection(host.host, host.port) for _ in range(FEW.handshakes_max)]
        late = await asyncio.open_connection(host.host, host.port)
        await ended(late)
        for connection in slow:
            connection[1].write(b"\x16\x03\x01")
            await ended(connection)
        assert secure.failed == FEW.handshakes_max + 1
        assert await enqueued(host.url, tls=Tls(ca_file=authority.file))

    secure.run(runner, main, FEW)
    assert "there are 3 TLS handshakes already" in caplog.text
    assert "the TLS handshake was not done after 5 s" in caplog.text


async def ended(connection: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
    reader, writer = connection
    with contextlib.suppress(ConnectionError):
        await reader.read()
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


@pytest.mark.parametrize(
    "sent", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\x00\x00\x00\x04junk", b"\x16\x03\x01\x00\x05abcde"]
)
def test_a_failed_handshake_costs_no_traceback(
    runner: asyncio.Runner, authority: Authority, caplog: pytest.LogCaptureFixture, sent: bytes
) -> None:
    secure = Secure(authority)

    async def main(host: ServedQueue) -> None:
        host.server.loop.set_debug(False)
        with socket.create_connection((host.host, host.port)) as peer:
            peer.sendall(sent)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
            await soon(lambda: bool(host.server.peer_log.suppressed_count) or not sent or secure.failed == 1)
        await soon(lambda: secure.failed == 1)

    with caplog.at_level(logging.DEBUG):
        secure.run(runner, main)
    assert [record for record in caplog.records if record.exc_info or record.levelno > logging.WARNING] == []


def test_new_certificate_is_used_from_the_next_connection(
    runner: asyncio.Runner, authority: Authority, stranger: Authority
) -> None:
    secure = Secure(authority)

    async def main(host: ServedQueue) -> None:
        assert host.acceptor is not None
        async with Client(host.url, timeout_ms=TIMEOUT_MS, tls=Tls(ca_file=authority.file)) as early:
            await early.enqueue([Item("t")])
            host.acceptor.context = Secure(stranger).context
            assert (await early.enqueue([Item("t")]))[0].id
            assert await enqueued(host.url, tls=Tls(ca_file=stranger.file))
            await message(host.url, tls=Tls(ca_file=authority.file))

    secure.run(runner, main)


def test_tls_context_of_the_caller_is_used(runner: asyncio.Runner, authority: Authority) -> None:
    async def main(host: ServedQueue) -> None:
        assert await enqueued(host.url, tls=ssl.create_default_context(cafile=authority.file))

    Secure(authority).run(runner, main)


def test_a_certificate_that_python_3_13_refuses_is_not_blamed_on_the_ca(
    runner: asyncio.Runner, authority: Authority
) -> None:
    strict = ssl.create_default_context(cafile=authority.file)
    strict.verify_flags |= ssl.VERIFY_X509_STRICT

    async def main(host: ServedQueue) -> None:
        said = await message(host.url, tls=strict)
        assert "Missing Authority Key Identifier; make it and its CA again" in said
        assert "give the CA" not in said

    Secure(authority, names_issuer=False).run(runner, main)


def test_old_tls_version_is_refused(runner: asyncio.Runner, authority: Authority) -> None:
    old = ssl.create_default_context(cafile=authority.file)
    old.minimum_version = ssl.TLSVersion.TLSv1_2
    old.maximum_version = ssl.TLSVersion.TLSv1_2

    async def main(host: ServedQueue) -> None:
        assert await enqueued(host.url, tls=old)
        assert host.acceptor is not None
        host.acceptor.context.minimum_version = ssl.TLSVersion.TLSv1_3
        assert "the host ended the TLS handshake" in await message_of_retries(host.url, tls=old)

    Secure(authority).run(runner, main)
