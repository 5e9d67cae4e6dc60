"""Replaces the program of the hosts of a cluster, one host after the other, while the cluster serves.

Always true: at most one host is drained or away at a time, and the next one follows only
when every shard is served. An interrupted upgrade may be repeated: a host that runs the
program already is only undrained. Knows nothing of tables.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final, Protocol

from foqs.dev.server_process import ServerNotAvailable
from foqs_client import Client, FoqsError, Host, Routing

STEP_TIMEOUT_S: Final = 120.0
"""How long a drain, a start or a takeover may take."""
_POLL_S: Final = 0.2
_CALL_MS: Final = 5_000

Report = Callable[[str], None]


class UpgradedHost(Protocol):
    """A host whose program is replaced."""

    @property
    def name(self) -> str: ...

    def replace(self) -> None:
        """Stop the host in order and start it with the other program; return when it answers. Raises ServerNotAvailable."""
        ...


async def upgrade_hosts(
    url: str, hosts: Sequence[UpgradedHost], report: Report, upgraded: Collection[str] = ()
) -> None:
    """Drain, replace and undrain each host.

    Args:
        url: the addresses of all hosts of the cluster.
        upgraded: the names of hosts that run the program already. An interrupted upgrade may have left one drained.

    Raises:
        ServerNotAvailable: a host did not start, or the cluster did not settle. The text says what to do.
    """
    found = await _wait_until(url, _all_served, "every shard is served")
    for left in (str(host.name) for host in found.hosts if host.draining and host.name in upgraded):
        report(f"{left}: it was left drained, and is undrained")
        await _undrain(url, left)
    for host in hosts:
        await _upgrade_host(url, host, report)


async def _upgrade_host(url: str, host: UpgradedHost, report: Report) -> None:
    found = await _wait_until(url, _all_served, "every shard is served")
    drained = any(other.name != host.name for other in found.hosts)
    if drained:
        report(f"{host.name}: it hands its shards over")
        await _call(url, lambda client: client.drain_host(host.name))
        await _wait_until(url, lambda found: _all_served(found, without=host.name), f"{host.name} has no shard left")
    try:
        report(f"{host.name}: its program is replaced")
        await asyncio.to_thread(host.replace)
        await _wait_until(
            url,
            lambda found: any(_is_back(other, host.name) for other in found.hosts),
            f"{host.name} is a member again",
        )
    finally:
        if drained:
            await _undrain(url, host.name)
    await _wait_until(url, lambda found: _has_its_part(found, host.name), f"{host.name} serves its part")
    report(f"{host.name}: it serves again")


def _is_back(host: Host, name: str) -> bool:
    return host.name == name and not host.leaving


def _all_served(routing: Routing, without: str | None = None) -> bool:
    return bool(routing.shards) and all(
        shard.state == "owned" and (without is None or shard.owner_name != without) for shard in routing.shards
    )


def _has_its_part(routing: Routing, name: str) -> bool:
    """Return whether every shard is served and the host has one. It may have none if there are too few that are not pinned."""
    free = [shard for shard in routing.shards if shard.pinned_to is None]
    wanted = bool(len(free) // max(1, len(routing.hosts)))
    return _all_served(routing) and (not wanted or any(shard.owner_name == name for shard in routing.shards))


async def _undrain(url: str, name: str) -> None:
    await _call(url, lambda client: client.undrain_host(name))


async def _routing(url: str) -> Routing:
    async with Client(url, timeout_ms=_CALL_MS) as client:
        return await client.routing()


async def _wait_until(url: str, condition: Callable[[Routing], bool], what: str) -> Routing:
    """Wait until the cluster is as it should be. Raises ServerNotAvailable after `STEP_TIMEOUT_S`."""
    until_s = time.monotonic() + STEP_TIMEOUT_S
    problem = ""
    while True:
        try:
            found = await _routing(url)
            if condition(found):
                return found
        except FoqsError as error:
            problem = f" ({error})"
        if time.monotonic() > until_s:
            raise ServerNotAvailable(
                f"waited {STEP_TIMEOUT_S:.0f} s until {what}{problem}: look at foqs cluster status, repair it, "
                "then run this command again"
            )
        await asyncio.sleep(_POLL_S)


async def _call(url: str, call: Callable[[Client], Awaitable[None]]) -> None:
    """Make a call, and repeat it while hosts cannot answer it. Raises ServerNotAvailable after `STEP_TIMEOUT_S`."""
    until_s = time.monotonic() + STEP_TIMEOUT_S
    while True:
        try:
            async with Client(url, timeout_ms=_CALL_MS) as client:
                return await call(client)
        except FoqsError as error:
            if not error.may_succeed_later or time.monotonic() > until_s:
                raise ServerNotAvailable(
                    f"the hosts refused a call of the upgrade: {error.code}: {error.message}"
                ) from None
        await asyncio.sleep(_POLL_S)
