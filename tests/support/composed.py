"""The cluster of configs/docker/compose.yml: brought up, looked at, damaged, and removed.

Always true: its containers, volumes and network have a project name and a subnet of
their own, and `down` removes all of them. Knows nothing of items.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pymysql

from foqs.dev.local_cluster import is_served
from foqs_client import Client, FoqsError, Routing
from tests.support.containers import BASE, engine
from tests.support.tables import Tables

HOSTS: Final = ("host1", "host2", "host3")
SHARDS: Final = 8
_CALL_MS: Final = 2_000
_COMMAND_TIMEOUT_S: Final = 600.0


class ComposedCluster:
    """One project.

    Args:
        context: a folder as the tree is after `make image-packages`.
    """

    def __init__(self, context: Path) -> None:
        self._file = context / "configs/docker/compose.yml"
        number = random.randrange(1 << 16)
        self._project = f"foqs-test-{number}"
        self._subnet = f"10.{200 + number % 50}.{number >> 8}"
        self.databases: dict[int, str] = {}
        """By shard, the service of its database."""

    @property
    def addresses(self) -> dict[str, str]:
        """The address of each host."""
        return {name: f"foqs://{self._subnet}.{11 + place}:7411" for place, name in enumerate(HOSTS)}

    @property
    def url(self) -> str:
        return "foqs://" + ",".join(address.removeprefix("foqs://") for address in self.addresses.values())

    def compose(self, *arguments: str) -> str:
        """Run a command of compose and return its output. Raises AssertionError with the output if it fails."""
        command = [*_compose_program(), "-p", self._project, "-f", str(self._file), *arguments]
        environment = {**os.environ, "BASE": BASE, "SUBNET": self._subnet, "BUILDAH_FORMAT": "docker"}
        done = subprocess.run(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_COMMAND_TIMEOUT_S,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def down(self) -> None:
        self.compose("down", "--volumes", "--timeout", "30")

    def container(self, service: str) -> Any:
        """Return the container of a service, with its state as it is now."""
        labels = [f"com.docker.compose.project={self._project}", f"com.docker.compose.service={service}"]
        [found] = engine().containers.list(all=True, filters={"label": labels})
        return found

    def log(self, service: str) -> str:
        return str(self.container(service).logs().decode(errors="replace"))

    # ------------------------------------------------------------------- looking

    def routing(self) -> Routing | None:
        """Return the routing table from the first host that replies."""
        return asyncio.run(_ask([*self.addresses.values()]))

    def owners(self) -> set[str]:
        """Return the names of the hosts that serve shards; nothing while a shard is not served."""
        routing = self.routing()
        if routing is None or not all(shard.state == "owned" for shard in routing.shards):
            return set()
        return {str(shard.owner_name) for shard in routing.shards}

    def is_settled(self) -> bool:
        """Return whether all hosts serve shards, and keys have their slots."""
        routing = self.routing()
        return (
            routing is not None
            and is_served(routing, len(HOSTS))
            and len(routing.shards) == SHARDS
            and all(shard.key_slots for shard in routing.shards)
            and {shard.owner_name for shard in routing.shards} == set(HOSTS)
        )

    def slots(self) -> dict[int, int]:
        """Return one slot of keys by shard. The cluster must be settled."""
        routing = self.routing()
        assert routing is not None
        self.databases = asyncio.run(_databases(self.url))
        return {shard.shard: shard.key_slots[0] for shard in routing.shards}

    def query(self, service: str, text: str) -> Sequence[Sequence[Any]]:
        """Run a statement in a database and return its rows."""
        [network] = self.container(service).attrs["NetworkSettings"]["Networks"].values()
        connection = pymysql.connect(host=network["IPAddress"], user="root", database="foqs")
        with closing(connection), connection.cursor() as cursor:
            cursor.execute(text)
            return list(cursor.fetchall())

    def tables(self) -> Tables:
        def query(shard: int, text: str) -> Sequence[Sequence[Any]]:
            return self.query(self.databases[shard], text.format(item=f"foqs_{shard}_item"))

        return Tables(range(SHARDS), query)

    def remaining_items(self) -> int:
        return sum(self.tables().query(shard, "SELECT COUNT(*) FROM {item}")[0][0] for shard in range(SHARDS))


def _compose_program() -> list[str]:
    """Return Docker's compose if it is there, and podman's otherwise."""
    if shutil.which("docker") and not subprocess.run(["docker", "compose", "version"], capture_output=True).returncode:
        return ["docker", "compose"]
    return [str(Path(sys.executable).with_name("podman-compose")), "--in-pod=false"]


async def _ask(addresses: Sequence[str]) -> Routing | None:
    for address in addresses:
        with contextlib.suppress(FoqsError):
            async with Client(address, timeout_ms=_CALL_MS) as client:
                return await client.routing()
    return None


async def _databases(url: str) -> dict[int, str]:
    async with Client(url) as client:
        return {shard.shard: str(shard.database) for shard in await client.list_shards()}
