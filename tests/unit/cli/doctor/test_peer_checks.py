"""Tests of the checks of other hosts: they answer, and accept this host."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from foqs.access.authenticator import AuthenticationLimits, Authenticator
from foqs.cli.doctor.peer_checks import check_peers
from foqs.options.config import Config, load
from foqs.routing.port import HostIdentity, StandaloneCluster
from foqs.rpc.cluster_handlers import cluster_handlers
from foqs.telemetry.findings import Finding
from shardmgr.model import Member
from tests.simulation import principals
from tests.support.access import RecordingObserver
from tests.support.aio import run
from tests.support.certificates import secret_file
from tests.support.fake_queue import FakeQueue
from tests.support.ports import free_port
from tests.support.rpc_server import ServedQueue, serve_queue

HERE = Member("host1", "n1", "127.0.0.1:1")


def config(folder: Path, token: str = "") -> Config:
    text = '[server]\nname = "host1"\n[cluster]\nzookeeper = "127.0.0.1:1"\n'
    if token:
        shown = secret_file(folder / "shown", token.encode())
        known = secret_file(folder / "known", b"0123456789abcdef")
        text += f'token_file = "{shown}"\n[auth]\nenabled = true\n[auth.principals.x]\ntoken_file = "{known}"\n'
    (folder / "foqs.toml").write_text(f'{text}[databases.one]\nurl = "sqlite:{folder}"\n')
    return load(folder / "foqs.toml", {})


def look(mine: Config, others: Callable[[ServedQueue], list[Member]], gate: Authenticator | None = None) -> Finding:
    """Return the findings about a served host and the other given hosts."""

    async def main() -> Finding:
        calls = cluster_handlers(StandaloneCluster(HostIdentity("h", 1, 1), list))
        async with serve_queue(FakeQueue(), calls=calls, authenticator=gate) as host:
            return await check_peers(mine, [HERE, *others(host)])

    return run(main())


def there(host: ServedQueue) -> Member:
    return Member("host2", "n2", f"{host.host}:{host.port}")


def gate() -> Authenticator:
    made = principals.gate(lambda *_: frozenset())
    return Authenticator(
        made.keyring,
        [principals.OPERATOR],
        made.permissions_of,
        RecordingObserver(),
        AuthenticationLimits(failure_delay_s=0.01),
    )


def test_hosts_that_answer_are_ok(tmp_path: Path) -> None:
    found = look(config(tmp_path), lambda host: [there(host)])
    assert (found.state, found.detail) == ("ok", "1 other host answers and accepts this one")


def test_unreachable_host_is_reported(tmp_path: Path) -> None:
    nobody = Member("host3", "n3", f"127.0.0.1:{free_port()}")
    found = look(config(tmp_path), lambda host: [there(host), nobody])
    assert found.state == "warning"
    assert "host3 cannot be called" in found.detail
    assert "host2" not in found.detail
    assert "server.advertise" in found.remedy


def test_hosts_of_another_tier_are_not_asked(tmp_path: Path) -> None:
    found = look(config(tmp_path), lambda host: [Member("host3", "n3", "127.0.0.1:1", tier="gold")])
    assert found.state == "ok"


def test_host_that_rejects_this_one_is_reported(tmp_path: Path) -> None:
    for token in ("not a token of anybody", principals.token(principals.PRODUCER)):
        found = look(config(tmp_path, token), lambda host: [there(host)], gate())
        assert found.state == "warning", token
        assert "host2 cannot be called" in found.detail
        assert "cluster.token_file" in found.remedy
        assert token not in found.detail
    assert (
        look(config(tmp_path, principals.token(principals.OPERATOR)), lambda host: [there(host)], gate()).state == "ok"
    )
