"""Tests tokens and token files: when they are sent, and what is refused before that."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from foqs_client import Client, InvalidArgument, Item, Tls, Unauthenticated
from foqs_client.addresses import is_tls_url, parse_addresses
from foqs_contract.call_table import Permission
from tests.support.access import ORDERS, EditableGrants, RecordingObserver, gate, keyring
from tests.support.aio import run
from tests.support.certificates import Authority, secret_file
from tests.support.fake_queue import FakeQueue
from tests.support.poll import soon
from tests.support.rpc_server import serve_queue


def test_scheme_decides_about_tls() -> None:
    assert parse_addresses("foqss://a:1,b") == parse_addresses("foqs://a:1,b") == [("a", 1), ("b", 7411)]
    assert [is_tls_url(url) for url in ("foqss://a", "foqs://a")] == [True, False]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"token": ""}, "token"),
        ({"token": "two\nlines"}, "token"),
        ({"token": "ü" * 20}, "token"),
        ({"token": "x" * 5_000}, "token"),
        ({"token": ORDERS, "token_file": "x"}, "token_file"),
        ({"token_file": "absent"}, "token_file"),
        ({"token_file": "open"}, "token_file"),
        ({"token_file": "empty"}, "token_file"),
        ({"tls": Tls()}, "tls"),
        ({"url": "foqss://a", "tls": Tls(ca_file="absent")}, "tls.ca_file"),
        ({"url": "foqss://a", "tls": Tls(ca_file="empty")}, "tls.ca_file"),
        ({"url": "foqss://a", "tls": Tls(cert_file="absent")}, "tls.cert_file"),
        ({"url": "foqss://a", "tls": Tls(cert_file="locked.pem", key_file="locked.key")}, "tls.cert_file"),
    ],
)
def test_bad_token_is_refused_at_once_and_not_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], field: str
) -> None:
    monkeypatch.chdir(tmp_path)
    secret_file(Path("open"), b"a-secret-of-orders", 0o644)
    secret_file(Path("empty"), b"")
    authority = Authority(Path("ca"))
    files = authority.sign("orders")
    Path("locked.pem").write_bytes(files.cert.read_bytes())
    secret_file(Path("locked.key"), authority.locked(files.key))
    with pytest.raises(InvalidArgument) as caught:
        Client(**{"url": "foqs://a", **options})
    assert caught.value.field == field
    assert "secret" not in str(caught.value)


def test_client_authenticates_each_connection_once_with_the_current_token_of_its_file(tmp_path: Path) -> None:
    counted = RecordingObserver()
    own = gate(EditableGrants(Permission.ENQUEUE), counted)
    file = secret_file(tmp_path / "token", f"{ORDERS}\nan-older-token\n".encode())

    async def main() -> None:
        async with serve_queue(FakeQueue(), authenticator=own) as host, Client(host.url, token_file=file) as client:
            await asyncio.gather(*(client.enqueue([Item("t")]) for _ in range(20)))
            assert counted.principals == ["orders"]
            own.keyring = keyring(orders="another-0123456789")
            secret_file(file, b"another-0123456789")
            host.server.close_revoked()
            await soon(lambda: not host.server.connections)
            await client.enqueue([Item("t")])
            assert counted.principals == ["orders", "orders"]

    run(main())
    assert counted.failures == 0


def test_wrong_token_fails_every_call_at_once_without_a_retry() -> None:
    counted = RecordingObserver()

    async def main() -> None:
        async with (
            serve_queue(FakeQueue(), authenticator=gate(counted=counted)) as host,
            Client(host.url, token="wrong-0123456789", timeout_ms=60_000) as client,
        ):
            calls = [client.enqueue([Item("t")]), client.dequeue({"t": 1}), client.routing()]
            for outcome in await asyncio.gather(*calls, return_exceptions=True):
                assert isinstance(outcome, Unauthenticated)
                assert "wrong-0123456789" not in str(outcome)

    run(main())
    assert counted.failures == 1


def test_host_without_authentication_ignores_a_token() -> None:
    async def main() -> None:
        async with serve_queue(FakeQueue()) as host, Client(host.url, token=ORDERS) as client:
            assert (await client.enqueue([Item("t")]))[0].id

    run(main())
