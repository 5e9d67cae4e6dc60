"""Doctor's checks of a host in a cluster: its name and address, ZooKeeper, the layout, and each database.

Always true: nothing is changed; a part that cannot be reached is one finding that
says why. Knows nothing of how findings are shown.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from foqs.cli.doctor.finding import StoreLocation
from foqs.cli.doctor.mysql_checks import check_mysql
from foqs.cli.doctor.peer_checks import check_peers
from foqs.cli.doctor.region_checks import check_servers
from foqs.cli.doctor.sqlite_checks import check_sqlite
from foqs.cluster.connections import read_registry
from foqs.options.config import Config
from foqs.store.factories import mysql_settings
from foqs.store.port import StoreUnusable
from foqs.store.primary_servers import settings_while_serving
from foqs.telemetry.findings import Finding
from foqs_contract.plurals import counted
from shardmgr.model import Layout, MalformedDocument, Member
from shardmgr.primary import LossPolicy, Primaries, Primary
from shardmgr.promoter import ElectedPromoter
from shardmgr.registry.port import RegistryError

_SHOWN_MAX: Final = 5


async def check_cluster(config: Config) -> list[Finding]:
    """Run all checks of the cluster."""
    findings = [await _check_advertised_address(config)]
    try:
        reading = await read_registry(config)
    except RegistryError as error:
        remedy = "start it, or correct cluster.zookeeper, and check that this machine reaches it"
        findings.append(Finding("ZooKeeper", "bad", str(error), remedy))
        return [*findings, *await _check_databases(config, Layout(), Primaries())]
    except MalformedDocument as error:
        remedy = "run the foqs that wrote it, or restore it from a backup (docs/cluster.md)"
        findings.append(Finding("ZooKeeper", "bad", f"its data cannot be read: {error}", remedy))
        return [*findings, *await _check_databases(config, Layout(), Primaries())]
    findings.append(_check_zookeeper(config))
    layout, members = reading.cluster.layout, reading.cluster.members
    findings += _check_members(config, members)
    findings.append(await check_peers(config, members))
    if layout is None:
        remedy = "create it with foqs cluster init --config FILE, or correct cluster.root"
        findings.append(Finding("Layout", "bad", f"there is no cluster at {config.cluster.root}", remedy))
        return [*findings, *await _check_databases(config, Layout(), Primaries())]
    findings.append(_check_layout(config, layout))
    findings += _check_primaries(reading.primaries, reading.elected)
    return [*findings, *await _check_databases(config, layout, reading.primaries)]


def _check_zookeeper(config: Config) -> Finding:
    """Check the access to a ZooKeeper that answers."""
    detail = f"{config.cluster.zookeeper} answers"
    if config.auth.enabled and not config.cluster.credentials_file:
        remedy = "set cluster.credentials_file on every host, before foqs cluster init"
        return Finding(
            "ZooKeeper", "warning", f"{detail}; anybody who reaches it can change the plan and grants", remedy
        )
    return Finding("ZooKeeper", "ok", detail)


async def _check_advertised_address(config: Config) -> Finding:
    """Check the address at which others call this host."""
    server = config.server
    address = server.advertise or f"{server.host}:{server.port}"
    option = "server.advertise" if server.advertise else "server.host"
    host = address.rpartition(":")[0].strip("[]") if server.advertise else server.host
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        detail = f"{host} has no address ({error.strerror or error})"
        return Finding("Address", "bad", detail, f"correct {option}: clients and hosts call this address")
    ours = {str(entry[4][0]).partition("%")[0] for entry in found}
    others = [part.rpartition(":")[0].strip("[]") for part in config.cluster.zookeeper.split(",")]
    if all(map(_is_loopback, ours)) and not all(map(_is_loopback, others)):
        detail = f"others call this host at {address}, which is the loopback address of each of them"
        return Finding(
            "Address", "warning", detail, "set server.advertise to the HOST:PORT at which others reach this host"
        )
    return Finding("Address", "ok", f"others call this host at {address}")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _check_members(config: Config, members: Sequence[Member]) -> Iterator[Finding]:
    server = config.server
    same = [member.address for member in members if server.name and member.name == server.name]
    there = [member.name for member in members if member.address == server.advertise]
    if len(same) > 1:
        remedy = "give each its own server.name; a dead host disappears within its session timeout"
        yield Finding("Hosts", "warning", f"several hosts are named {server.name}: {', '.join(sorted(same))}", remedy)
    elif len(set(there)) > 1 or (there and server.name and server.name not in there):
        remedy = "give each its own server.advertise: calls for one host reach another"
        names = ", ".join(sorted({*there, *([server.name] if server.name else [])}))
        yield Finding("Hosts", "warning", f"several hosts advertise {server.advertise}: {names}", remedy)
    else:
        names = ", ".join(sorted(member.name for member in members)[:_SHOWN_MAX])
        more = f" and {len(members) - _SHOWN_MAX} more" if len(members) > _SHOWN_MAX else ""
        yield Finding("Hosts", "ok", f"running: {names}{more}" if members else "no host is running")


def _check_layout(config: Config, layout: Layout) -> Finding:
    """Check whether this host can open every shard that the plan may assign to it."""
    mine = [spec for spec in layout.shards.values() if spec.tier == config.server.tier]
    unknown = sorted({spec.database for spec in mine} - config.databases.keys())
    if unknown:
        count = sum(spec.database in unknown for spec in mine)
        remedy = f"add [databases.{unknown[0]}] to this host's configuration, or drain and remove these shards"
        return Finding(
            "Layout",
            "bad",
            f"{counted(count, 'shard is', 'shards are')} in databases that are not configured here: {', '.join(unknown)}",
            remedy,
        )
    if not mine:
        remedy = "add some with foqs shard add, or correct server.tier"
        return Finding("Layout", "warning", f"no shard is of this host's tier, {config.server.tier}", remedy)
    return Finding(
        "Layout",
        "ok",
        f"{counted(len(mine), 'shard')} of tier {config.server.tier} in {counted(len(config.databases), 'database')}",
    )


def _check_primaries(primaries: Primaries, elected: Mapping[str, ElectedPromoter]) -> Iterator[Finding]:
    """Check the entries of databases with a server in each region, and what their elected promoters say of them."""
    for database, problem in primaries.malformed.items():
        remedy = (
            "correct this document in ZooKeeper, or restore it from a backup (docs/cluster.md); until then the database's "
            "shards stay where they are"
        )
        yield Finding(f"Primary {database}", "bad", f"its entry cannot be read: {problem}", remedy)
    for database, entry in sorted(primaries.entries.items()):
        yield primary_finding(database, entry, elected.get(database))


def primary_finding(database: str, entry: Primary, elected: ElectedPromoter | None) -> Finding:
    """Return whether a database accepts writes and survives the loss of its primary, as the host says that watches it.

    Args:
        elected: None: nobody is elected.
    """
    check, state = f"Primary {database}", entry.state.value
    if elected is None:
        detail = f"its entry is {state}, and no host watches {entry.server}: nobody would replace it"
        return Finding(check, "warning", detail, f"start a host with databases.{database}.servers")
    if elected.blocked:
        detail, _, remedy = elected.blocked.partition("; ")
        return Finding(check, "bad", detail, remedy)
    if not entry.is_serving:
        is_of_this_state = elected.text.startswith(f"{state}: ")
        detail = f"its entry is {elected.text if is_of_this_state else state}"
        return Finding(check, "warning", detail, "see foqs region list")
    if elected.reached is not None and entry.server not in elected.reached:
        detail = f"the host that watches {entry.server} does not reach it: {elected.text}"
        return Finding(check, "bad", detail, "start it; if it is lost, see FoqsPrimaryAway in docs/runbook.md")
    if elected.lacks_if_lost is None:
        detail = f"whether hosts would replace {entry.server} if it were lost now is not known"
        return Finding(check, "warning", detail, "repeat this in some seconds; if it stays so, upgrade all hosts")
    if entry.policy is LossPolicy.SEMI_SYNC and elected.lacks_if_lost:
        detail = f"if {entry.server} were lost now, hosts would not replace it: {'; '.join(elected.lacks_if_lost)}"
        return Finding(check, "warning", detail, "see FoqsAckersNotProven in docs/runbook.md")
    return Finding(check, "ok", f"{entry.server} in {entry.servers[entry.server].region}, term {entry.term}")


async def _check_databases(config: Config, layout: Layout, primaries: Primaries) -> list[Finding]:
    """Check each database like the store of a single host, with its name in the findings. One with an entry, at its primary."""
    findings: list[Finding] = []
    for name, options in config.databases.items():
        shards = sorted(spec.number for spec in layout.shards.values() if spec.database == name)
        place = StoreLocation(f"databases.{name}", shards, config.store.unsafe_durability)
        if options.parsed_url.kind == "mysql":
            found = await _check_primary(config, name, place, primaries)
        else:
            found = await check_sqlite(Path(options.parsed_url.path), place)
        if options.servers:
            found += await check_servers(config, name, primaries.entries.get(name))
        findings += [replace(finding, check=f"{finding.check} {name}") for finding in found]
    return findings


async def _check_primary(config: Config, name: str, place: StoreLocation, primaries: Primaries) -> list[Finding]:
    try:
        settings = settings_while_serving(config, name, mysql_settings(config, name), primaries)
    except StoreUnusable as error:
        detail, _, remedy = str(error).partition("; ")
        return [Finding("Store", "bad", detail, remedy)]
    return await check_mysql(settings, place)
