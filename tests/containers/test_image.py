"""The image of configs/docker/Dockerfile: a host without rights, whose health is seen, and that stops in order."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from foqs.dev.host_process import to_toml
from foqs_client import Client, Item
from tests.support.aio import run
from tests.support.containers import BASE, build, engine
from tests.support.freezing import freeze, thaw
from tests.support.poll import until
from tests.support.ports import free_port

pytestmark = [pytest.mark.containers, pytest.mark.timeout(900)]

STOP_S: Final = 30


class Host:
    """A host in a container of the image, with a read-only root and its data in a volume."""

    def __init__(self, image: str, folder: Path) -> None:
        self.port, self.http_port = free_port(), free_port()
        config = folder / "foqs.toml"
        config.write_text(to_toml({"server.port": self.port, "store.url": "sqlite:/var/lib/foqs/data"}))
        config.chmod(0o644)
        self.container: Any = engine().containers.create(
            image,
            environment={"FOQS_SERVER__HTTP_PORT": str(self.http_port)},
            network_mode="host",
            volumes={str(config): {"bind": "/etc/foqs/foqs.toml", "mode": "ro"}},
            read_only=True,
            cap_drop=["ALL"],
            security_opt=["no-new-privileges"],
        )

    @property
    def address(self) -> str:
        return f"foqs://127.0.0.1:{self.port}"

    @property
    def state(self) -> dict[str, Any]:
        self.container.reload()
        return dict(self.container.attrs["State"])

    def start(self) -> None:
        self.container.start()
        until(self.is_ready, "the host is ready", 60)

    def is_ready(self) -> bool:
        assert self.state["Running"], self.log
        try:
            return bool(self.get("/readyz"))
        except OSError:
            return False

    def has_a_waiting_dequeue(self) -> bool:
        return "\nfoqs_waiting_dequeues 1.0\n" in self.get("/metrics")

    def get(self, path: str) -> str:
        """Return the body of an HTTP path. Raises OSError."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}{path}", timeout=5) as reply:
            return str(reply.read().decode())

    @property
    def log(self) -> str:
        return str(self.container.logs().decode(errors="replace"))

    def health(self) -> int:
        """Return the exit code of the image's own check. Not every engine runs it by itself."""
        [kind, *command] = self.container.attrs["Config"]["Healthcheck"]["Test"]
        assert kind == "CMD"
        return int(self.container.exec_run(command).exit_code)


@pytest.fixture(scope="session")
def image(context: Path) -> str:
    name = "foqs-test-host"
    build("configs/docker/Dockerfile", name, {"BASE": BASE, "PIP_NO_INDEX": "1"}, context)
    return name


@pytest.fixture
def host(image: str, tmp_path: Path) -> Iterator[Host]:
    found = Host(image, tmp_path)
    try:
        found.start()
        yield found
    finally:
        found.container.remove(force=True, v=True)


def test_the_host_runs_without_rights(host: Host) -> None:
    status = Path(f"/proc/{host.state['Pid']}/status").read_text()
    fields = {name: value.split() for name, _, value in (line.partition(":") for line in status.splitlines())}
    assert fields["Uid"] == fields["Gid"] == ["10001"] * 4
    assert {int(fields[name][0], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
    written = host.container.exec_run(["sh", "-c", "touch /opt/foqs/x || touch /etc/foqs/x || touch /x"])
    assert written.exit_code != 0


def test_the_image_has_the_wheel_and_no_tools_to_build_with(host: Host) -> None:
    found = json.loads(host.container.exec_run(["foqs", "version", "--all", "-o", "json"]).output)
    assert found[0]["modules"] == "plain Python"
    assert host.container.exec_run(["sh", "-c", "ls /build /src; command -v gcc"]).exit_code != 0


def test_the_health_check_passes_while_the_host_answers_and_fails_while_it_hangs(host: Host) -> None:
    assert host.health() == 0
    freeze(host.state["Pid"])
    try:
        assert host.health() == 1
    finally:
        thaw(host.state["Pid"])
    assert host.health() == 0


def test_sigterm_ends_waiting_calls_and_the_items_are_there_after_the_next_start(host: Host) -> None:
    async def story() -> None:
        async with Client(host.address) as client:
            [enqueued] = await client.enqueue([Item("mail", b"hello")])
            enqueued.require()
            waiting = asyncio.ensure_future(client.dequeue({"other": 1}, wait_ms=600_000))
            await asyncio.to_thread(until, host.has_a_waiting_dequeue, "the dequeue waits")
            await asyncio.to_thread(host.container.stop, timeout=STOP_S)
            waiting.cancel()
        assert (host.state["Running"], host.state["ExitCode"]) == (False, 0), host.log
        assert host.log.rstrip().endswith('"message": "the host has stopped"}')
        await asyncio.to_thread(host.start)
        async with Client(host.address) as client:
            [item] = await client.dequeue({"mail": 1}, wait_ms=5_000)
            assert item.payload == b"hello"

    run(story(), timeout=120)
