"""TLS to a real server: what encrypts, what is refused, and what the errors say."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from foqs.cli.doctor.finding import StoreLocation
from foqs.cli.doctor.mysql_checks import check_mysql
from foqs.dev.server_process import give_to_user, unprivileged_user
from foqs.options.config import Config, load
from foqs.store.factories import database_store_factory, mysql_settings
from foqs.store.mysql.mysql_driver import MysqlLink, MysqlLinkLost, MysqlSettings
from foqs.store.mysql.mysql_store import MysqlStore
from foqs.store.port import StoreError, StoreLost, StoreUnusable
from foqs.telemetry.findings import Finding
from tests.support.aio import run
from tests.support.certificates import Authority, Signed
from tests.support.mariadb import MariaDb
from tests.support.mysql9 import BOTH, KINDS
from tests.support.stores import contents, make_row, opened

pytestmark = pytest.mark.mysql

USERS = {"plain": "", "secured": "REQUIRE SSL", "certified": "REQUIRE X509"}
HOST = "127.0.0.1"


@dataclass(slots=True, frozen=True)
class TlsServer:
    """A server with a certificate, and a password file for its users."""

    server: MariaDb
    database: str
    password_file: Path
    authority: Authority
    client: Signed

    def config(self, user: str, host: str = HOST, **tls: Any) -> Config:
        store = {"url": f"mysql://{user}@{host}:{self.server.port}/{self.database}", **tls}
        return load(overrides={f"store.{name}": value for name, value in store.items()} | self._password)

    @property
    def _password(self) -> dict[str, Any]:
        return {"store.password_file": str(self.password_file)}

    def settings(self, user: str, host: str = HOST, **tls: Any) -> MysqlSettings:
        return mysql_settings(self.config(user, host, **tls))

    @property
    def ca(self) -> dict[str, Any]:
        """The options that verify the server."""
        return {"tls": "verify_identity", "tls_ca_file": str(self.authority.file)}

    @property
    def certificate(self) -> dict[str, Any]:
        """The options that show a certificate."""
        return {"tls_cert_file": str(self.client.cert), "tls_key_file": str(self.client.key)}


@pytest.fixture(params=BOTH, scope="module")
def tls_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsServer]:
    folder = tmp_path_factory.mktemp("tls")
    authority = Authority(folder)
    signed, client = authority.sign("db"), authority.sign("host")
    server = KINDS[str(request.param)]()
    try:
        files = {"ssl-ca": authority.file, "ssl-cert": signed.cert, "ssl-key": signed.key}
        for name, file in files.items():
            copy = server.folder / f"{name}.pem"
            shutil.copy(file, copy)
            give_to_user(copy, unprivileged_user("mysql"))
        server.start(*(f"--{name}={server.folder / name}.pem" for name in files))
        database = server.database()
        for user, demand in USERS.items():
            server.query(f"CREATE USER {user}@'{HOST}' IDENTIFIED BY 'secret' {demand}")
            server.query(f"GRANT ALL ON {database}.* TO {user}@'{HOST}'")
        password_file = folder / "password"
        password_file.write_text("secret\n")
        password_file.chmod(0o600)
        yield TlsServer(server, database, password_file, authority, client)
    finally:
        server.remove()


@pytest.fixture(autouse=True)
def loop_errors(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail a test in which a callback of the event loop failed."""
    yield
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


async def use(settings: MysqlSettings, shard: int = 1) -> str:
    """Write and read an item over the connections of a store; return the cipher of another connection."""
    store = MysqlStore(settings, shard)
    try:
        owned = await opened(store, (await owner_epoch(settings, shard)) + 1)
        await owned.write(inserts=[make_row(7)])
        assert set(await contents(owned)) == {7}
        await owned.write(deletes=[7])
        assert store._link is not None
        with suppress(MysqlLinkLost):
            await store._link.run(b"KILL CONNECTION_ID()")
    finally:
        await store.close()
    link = await MysqlLink.connect(settings)
    try:
        [found] = await link.run(b"SHOW STATUS LIKE 'Ssl_cipher'")
        return str(found.rows[0][1])
    finally:
        await link.close()


async def owner_epoch(settings: MysqlSettings, shard: int) -> int:
    store = MysqlStore(settings, shard)
    try:
        await store.open()
        return (await store.read_owner()).epoch
    finally:
        await store.close()


async def fails(settings: MysqlSettings, kind: type[StoreError], text: str, remedy: str) -> None:
    """Assert how a store fails to open, and what doctor says."""
    with pytest.raises(kind, match=text):
        await MysqlStore(settings, 1).open()
    [finding] = await doctor(settings)
    assert finding.state == "bad"
    assert remedy in finding.remedy


async def doctor(settings: MysqlSettings) -> list[Finding]:
    return await check_mysql(settings, StoreLocation("store", [1], False))


def test_each_mode_encrypts_and_the_default_does_not(tls_server: TlsServer) -> None:
    async def story() -> None:
        ca_file = str(tls_server.authority.file)
        for tls in ({"tls": "required"}, {"tls": "verify_ca", "tls_ca_file": ca_file}, tls_server.ca):
            for user in ("plain", "secured"):
                assert await use(tls_server.settings(user, **tls)), f"{user} with {tls}"
        assert await use(tls_server.settings("certified", **tls_server.ca, **tls_server.certificate))
        assert await use(tls_server.settings("plain")) in ("", "b''")

    run(story(), 60)


def test_a_user_that_demands_tls_or_a_certificate_is_named_in_the_remedy(tls_server: TlsServer) -> None:
    async def story() -> None:
        demand = "demands TLS (REQUIRE SSL, require_secure_transport), set store.tls"
        await fails(tls_server.settings("secured"), StoreUnusable, "Access denied.*demands TLS, set tls in", demand)
        await fails(tls_server.settings("certified", **tls_server.ca), StoreUnusable, "Access denied", "store.tls_cert")
        # MariaDB does not say why it refuses.
        tls_server.server.query("SET GLOBAL require_secure_transport = ON")
        try:
            await fails(
                tls_server.settings("plain"),
                StoreUnusable,
                "(insecure transport|Access denied).*set tls in",
                "store.tls to",
            )
            assert await use(tls_server.settings("plain", **tls_server.ca))
        finally:
            tls_server.server.query("SET GLOBAL require_secure_transport = OFF")

    run(story(), 60)


def test_a_server_with_another_certificate_gets_no_password(tls_server: TlsServer, tmp_path: Path) -> None:
    async def story() -> None:
        stranger = {"tls": "verify_ca", "tls_ca_file": str(Authority(tmp_path, "Other CA").file)}
        rejected = "certificate is not accepted"
        await fails(tls_server.settings("plain", **stranger), StoreLost, rejected, "store.tls_ca_file")
        # 127.1 is another name of 127.0.0.1, which the certificate does not contain.
        await fails(tls_server.settings("plain", "127.1", **tls_server.ca), StoreLost, rejected, "store.url")
        same = {"tls": "verify_ca", "tls_ca_file": str(tls_server.authority.file)}
        assert await use(tls_server.settings("plain", "127.1", **same))

    run(story(), 60)


def test_a_cluster_reads_the_files_of_each_database(tls_server: TlsServer) -> None:
    url = tls_server.config("certified").store.url
    file = {"url": url, "password_file": str(tls_server.password_file), **tls_server.ca, **tls_server.certificate}
    config = Config.model_validate({"databases": {"main": file}})

    async def story() -> None:
        store = database_store_factory(config, "main")(4)
        await store.open()
        await store.close()

    run(story(), 60)


@pytest.mark.parametrize("offers", [False, True])
def test_a_peer_that_hides_its_offer_of_tls_gets_no_login(offers: bool) -> None:
    """Somebody in between could make the client go on in clear, and read the login."""
    greeting = b"\x0a8.0.0\0" + bytes(4) + b"saltsalt\0"
    capabilities = 0x000F_F7FF if offers else 0x000F_F7FF & ~0x0800
    greeting += capabilities.to_bytes(4, "little")[:2] + b"\x2d\x02\0" + capabilities.to_bytes(4, "little")[2:]
    greeting += b"\x15" + bytes(10) + b"saltsaltsalt\0" + b"mysql_native_password\0"
    received: list[bytes] = []
    served = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(len(greeting).to_bytes(3, "little") + b"\0" + greeting)
        received.append(await reader.read(4_096))
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        served.set()

    async def story() -> None:
        server = await asyncio.start_server(serve, HOST, 0)
        settings: dict[str, Any] = {"host": HOST, "port": server.sockets[0].getsockname()[1], "user": "reader"}
        encrypted = mysql_settings(load(overrides={"store.url": "mysql://u@h/d", "store.tls": "required"}))
        with pytest.raises(MysqlLinkLost, match="TLS"):
            await MysqlLink.connect(replace(encrypted, connect_timeout_s=2.0, **settings))
        await served.wait()
        server.close()
        await server.wait_closed()

    run(story(), 30)
    assert b"reader" not in b"".join(received)


def test_doctor_warns_of_a_database_that_a_network_leads_to_in_clear(tls_server: TlsServer) -> None:
    async def story() -> None:
        assert not [found for found in await doctor(tls_server.settings("plain")) if found.check == "Encryption"]
        [found] = [f for f in await doctor(tls_server.settings("plain", "127.1")) if f.check == "Encryption"]
        assert (found.state, "readably" in found.detail, "store.tls" in found.remedy) == ("warning", True, True)

    run(story(), 60)
