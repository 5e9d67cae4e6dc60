"""Real hosts with authentication: tokens, certificates, changed secrets, and the command line."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from foqs_client import Client, Item, PermissionDenied, Tls, Unauthenticated, Unreachable
from tests.support.aio import run
from tests.support.certificates import Authority, Signed, secret_file
from tests.support.poll import until
from tests.support.processes import PROGRAM, RestartableHost, quick_host

pytestmark = [pytest.mark.process]

HANDSHAKE_S = 5
BOSS, ORDERS, LATER = "secret-of-the-boss", "secret-of-orders-1", "secret-of-orders-2"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


class Guarded(RestartableHost):
    """A host with the principals `boss`, an administrator, and `orders`; with TLS if there is an authority."""

    def __init__(
        self, folder: Path, authority: Authority | None = None, *, expired: bool = False, failure_delay_s: float = 0.05
    ) -> None:
        folder.mkdir(parents=True)
        self.boss = secret_file(folder / "boss", BOSS.encode())
        self.orders = secret_file(folder / "orders", ORDERS.encode())
        options: dict[str, Any] = {
            "auth.enabled": True,
            "auth.principals.boss.token_file": str(self.boss),
            "auth.principals.boss.admin": True,
            "auth.principals.orders.token_file": str(self.orders),
        }
        self.files: Signed | None = None
        if authority is not None:
            self.files = authority.sign("host", expired=expired)
            options |= {
                "server.tls_cert_file": str(self.files.cert),
                "server.tls_key_file": str(self.files.key),
                "server.tls_client_ca_file": str(authority.file),
            }
        command = quick_host(
            authentication={"failure_delay_s": failure_delay_s}, rpc={"handshake_timeout_ms": HANDSHAKE_S * 1_000}
        )
        super().__init__(folder / "host", "memory:", options, command)

    @property
    def address(self) -> str:
        return f"{'foqs' if self.files is None else 'foqss'}://127.0.0.1:{self.port}"

    def read_again(self, said: str) -> None:
        """Send SIGHUP. Return when the host has logged `said` once more."""
        before = self.log.count(said)
        self.signal(signal.SIGHUP)
        until(lambda: self.log.count(said) > before, f"the host says {said!r}")

    def check_log(self) -> None:
        """Check that the log contains no secret and no traceback."""
        for word in (BOSS, ORDERS, LATER, "Traceback", "exception"):
            assert word not in self.log


UNREACHABLE_MS = 5_000
"""The time of a call that cannot succeed: the client tries again until it is over."""


def enqueue(host: RestartableHost, timeout_ms: int = 30_000, **options: Any) -> str:
    async def call() -> str:
        async with Client(host.address, timeout_ms=timeout_ms, **options) as client:
            return (await client.enqueue([Item("mail")]))[0].require()

    return run(call())


def foqs(host: RestartableHost, *args: str, **more: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FOQS_") or name == "FOQS_PURE"}
    return subprocess.run(
        [PROGRAM, *args],
        capture_output=True,
        text=True,
        timeout=60,
        env=kept | {"FOQS_ADDRESS": host.address, "NO_COLOR": "1"} | more,
        check=False,
    )


def test_without_grants_only_an_administrator_is_admitted(tmp_path: Path) -> None:
    with Guarded(tmp_path / "a") as host:
        host.start()
        for token in (None, "wrong-token-of-orders"):
            with pytest.raises(Unauthenticated):
                enqueue(host, token=token)
        with pytest.raises(PermissionDenied, match="'orders' needs the grant ENQUEUE"):
            enqueue(host, token=ORDERS)
        assert enqueue(host, token_file=host.boss)
        page = host.get("/metrics")
        assert page is not None
        assert 'foqs_authentications_total{principal="orders"} 1.0' in page[1]
        assert "foqs_authentication_failures_total 1.0" in page[1]
        assert 'foqs_calls_total{code="UNAUTHENTICATED",method="enqueue"} 1.0' in page[1]
        assert host.stop() == 0
        host.check_log()


def test_the_command_line_reads_a_token_only_from_a_file(tmp_path: Path) -> None:
    with Guarded(tmp_path / "a") as host:
        host.start()
        done = foqs(host, "enqueue", "mail", "hello", "--token-file", str(host.boss))
        assert done.returncode == 0, done.stderr
        done = foqs(host, "dequeue", "mail", "-o", "json", FOQS_TOKEN_FILE=str(host.boss))
        assert '"topic": "mail"' in done.stdout, done.stderr
        done = foqs(host, "topic", "list")
        assert (done.returncode, done.stdout) == (1, "")
        assert "UNAUTHENTICATED" in done.stderr
        host.boss.chmod(0o644)
        done = foqs(host, "topic", "list", "--token-file", str(host.boss))
        assert done.returncode == 2
        assert f"chmod 600 {host.boss}" in done.stderr
        host.check_log()


def test_a_secret_is_replaced_without_a_gap_and_revoking_it_closes_its_connections(tmp_path: Path) -> None:
    async def story(host: Guarded) -> None:
        async with Client(host.address, token_file=host.boss) as client:
            await client.enqueue([Item("mail")])
            secret_file(host.boss, f"{LATER}\n{BOSS}\n".encode())
            host.read_again("were read again")
            await client.enqueue([Item("mail")])
            assert "is no longer valid" not in host.log
            secret_file(host.boss, f"{LATER}\n".encode())
            host.read_again("were read again")
            until(lambda: "(boss): closed: its token or certificate is no longer valid" in host.log, "it is closed")
            await client.enqueue([Item("mail")])

    with Guarded(tmp_path / "a") as host:
        host.start()
        run(story(host))
        with pytest.raises(Unauthenticated):
            enqueue(host, token=BOSS)
        host.check_log()


def test_unusable_files_leave_the_old_secrets_in_force(tmp_path: Path) -> None:
    with Guarded(tmp_path / "a") as host:
        host.start()
        host.orders.chmod(0o644)
        secret_file(host.boss, LATER.encode())
        host.read_again("the former ones stay in use")
        assert f"chmod 600 {host.orders}" in host.log
        assert enqueue(host, token=BOSS)
        with pytest.raises(Unauthenticated):
            enqueue(host, token=LATER)
        assert host.stop() == 0
        host.launch()
        assert host.wait_for_exit() == 2
        assert host.log.splitlines()[-1] == (
            f"Error: {host.orders}: auth.principals.orders.token_file: others than its owner may use it (mode 644); "
            f"run: chmod 600 {host.orders}"
        )
        host.check_log()


def test_tls_admits_clients_with_a_known_token_or_certificate(tmp_path: Path, authority: Authority) -> None:
    boss, guest, old = authority.sign("boss"), authority.sign("guest"), authority.sign("boss", expired=True)
    stranger = Authority(tmp_path / "stranger", "Stranger")
    foreign = stranger.sign("boss")

    def shown(files: Signed) -> Tls:
        return Tls(authority.file, files.cert, files.key)

    with Guarded(tmp_path / "a", authority) as host:
        host.start()
        assert enqueue(host, tls=Tls(authority.file), token=BOSS)
        assert enqueue(host, tls=shown(boss))
        with pytest.raises(PermissionDenied, match="'guest'"):
            enqueue(host, tls=shown(guest))
        with pytest.raises(Unauthenticated):
            enqueue(host, tls=Tls(authority.file))
        for refused in (old, foreign):
            with pytest.raises(Unreachable, match="may not accept the client's certificate"):
                enqueue(host, UNREACHABLE_MS, tls=shown(refused))
        with pytest.raises(Unreachable, match="certificate is not accepted"):
            enqueue(host, UNREACHABLE_MS, tls=Tls(stranger.file), token=BOSS)
        assert "certificate has expired" in host.log
        done = foqs(
            host, "topic", "list", FOQS_CA_FILE=str(authority.file), FOQS_CERT_FILE=str(boss.cert),
            FOQS_KEY_FILE=str(boss.key),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "mail" in done.stdout
        done = foqs(host, "topic", "list", "--timeout", "5s", FOQS_TOKEN_FILE=str(host.boss))
        assert done.returncode == 3
        assert "certificate" in done.stderr
        assert host.stop() == 0
        host.check_log()


def test_an_expired_certificate_of_the_host_is_not_trusted_until_it_is_replaced(
    tmp_path: Path, authority: Authority
) -> None:
    with Guarded(tmp_path / "a", authority, expired=True) as host:
        host.start()
        assert host.files is not None
        with pytest.raises(Unreachable, match="certificate has expired"):
            enqueue(host, UNREACHABLE_MS, tls=Tls(authority.file), token=BOSS)
        fresh = authority.sign("fresh")
        host.files.cert.write_bytes(fresh.cert.read_bytes())
        host.read_again("the former ones stay in use")
        secret_file(host.files.key, fresh.key.read_bytes())
        host.read_again("were read again")
        assert enqueue(host, tls=Tls(authority.file), token=BOSS)
        host.check_log()


def test_an_unfinished_tls_handshake_costs_one_log_line_and_disturbs_no_client(
    tmp_path: Path, authority: Authority
) -> None:
    with Guarded(tmp_path / "a", authority) as host:
        host.start()
        with socket.create_connection(("127.0.0.1", host.port)) as slow:
            slow.sendall(b"\x16\x03\x01\x02")
            with socket.create_connection(("127.0.0.1", host.port)) as plain:
                plain.sendall(b"GET / HTTP/1.0\r\n\r\n")
                assert plain.recv(100)[:2] == b"\x15\x03"
            assert enqueue(host, tls=Tls(authority.file), token=BOSS)
            assert slow.recv(1) == b""
        until(lambda: f"was not done after {HANDSHAKE_S} s" in host.log, "the log reports it")
        assert "it does not speak TLS" in host.log
        page = host.get("/metrics")
        assert page is not None
        assert "foqs_tls_handshake_failures_total 2.0" in page[1]
        assert host.stop() == 0
        host.check_log()


def test_doctor_distinguishes_a_tls_host_from_a_plain_one(tmp_path: Path, authority: Authority) -> None:
    with Guarded(tmp_path / "a", authority) as host:
        host.start()

        def calls(**more: str) -> dict[str, str]:
            done = foqs(host, "doctor", "--config", str(host.config), "-o", "json", **more)
            assert done.stdout, done.stderr
            found: dict[str, str] = next(row for row in json.loads(done.stdout) if row["check"] == "Calls")
            return found

        assert calls()["found"] == f"127.0.0.1:{host.port} speaks TLS"
        crossed = calls(FOQS_SERVER__PORT=str(host.http_port), FOQS_SERVER__HTTP_PORT=str(host.port))
        assert "does not speak TLS" in crossed["found"]
