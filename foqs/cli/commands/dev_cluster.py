"""`foqs dev --cluster N`: a cluster on this machine in the foreground, for trials.

Always true: every process that the command started is stopped at its end, by
Ctrl-C, SIGTERM or the end of its terminal; a second signal kills the rest. A
process that dies is reported and not restarted, unless another program was requested
for it (`foqs upgrade`). A host that the user starts instead belongs to the user: the
command names it if it still runs at the end.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final

from foqs.cli.host_session import ERROR, USAGE, CommandFailed
from foqs.cli.listen_addresses import port_problem
from foqs.cli.output import print_message, program_name, show_banner
from foqs.dev.host_process import HostProcess
from foqs.dev.server_process import ServerNotAvailable
from foqs_contract.plurals import counted

if TYPE_CHECKING:
    from foqs.dev.local_cluster import LocalCluster
    from foqs.dev.server_process import ServerProcess

DATABASES: Final = 2
SHARDS_DEFAULT: Final = 8
PORT_DEFAULT: Final = 7411
_PORTS_PER_HOST: Final = 3
_POLL_S: Final = 0.2


def run_cluster(
    hosts: int,
    data: str | None,
    shards: int | None,
    port: int | None,
    program: Path | None,
    with_sqs: bool,
    *,
    with_regions: bool = False,
) -> None:
    """Run a cluster until a signal stops it.

    Args:
        hosts: their number, with regions one in each.
        port: the first of two ports for each host, one for each console and one for each SQS server; 0: any free ports.
        program: the `foqs` of the hosts; None: this one. A host for which another one was requested runs that.
        with_regions: there is one database, which has a server in each region.

    Raises:
        CommandFailed: the cluster cannot be started.
    """
    from foqs.dev.local_cluster import INSTALLED, LocalCluster
    from foqs.dev.server_process import stop_on_signals
    from foqs_contract.size_ceilings import PAYLOAD_BYTES_CEILING

    folder = None if data is None else _usable_folder(data)
    first = PORT_DEFAULT if port is None else port
    ports = _host_ports(first, hosts, _PORTS_PER_HOST + with_sqs)
    servers = hosts if with_regions else DATABASES
    print_message(f"Starting ZooKeeper, {servers} MariaDB servers and {counted(hosts, 'host')} ...")
    with stop_on_signals():
        cluster: LocalCluster | None = None
        try:
            programs = INSTALLED if program is None else replace(INSTALLED, foqs=[str(program.absolute())])
            cluster = LocalCluster(
                folder,
                hosts,
                DATABASES,
                shards or SHARDS_DEFAULT,
                ports.__next__,
                options={"namespace.payload_bytes_max": PAYLOAD_BYTES_CEILING} if with_sqs else {},
                programs=programs,
                # Another version may not know the options.
                with_consoles=program is None,
                with_sqs=with_sqs,
                regions=hosts if with_regions else 0,
            )
            cluster.set_up()
            show_banner(cluster_banner(cluster))
            _report_deaths(cluster)
        except (ServerNotAvailable, OSError) as error:
            raise CommandFailed(str(error), ERROR) from None
        except KeyboardInterrupt:
            print_message("Stopping ...")
        finally:
            if cluster is not None:
                cluster.close()
                _report_hosts_left_running(cluster)
    print_message("Stopped.")


def _usable_folder(data: str) -> Path:
    """Return the folder. Raises `CommandFailed` if the configurations of servers and hosts, which are UTF-8, cannot name it."""
    folder = Path(data)
    try:
        str(folder.absolute()).encode()
    except UnicodeEncodeError:
        raise CommandFailed(
            f"The name of {folder.absolute()} is not UTF-8; with --cluster, choose another --data", USAGE
        ) from None
    return folder


def _report_hosts_left_running(cluster: LocalCluster) -> None:
    """Name the hosts that the user started from this cluster's configurations and that still run."""
    for host in cluster.hosts:
        if host.is_ok("/livez"):
            print_message(
                f"{host.options['server.name']} at {host.address} still runs, without ZooKeeper and databases: "
                "this command did not start it; stop it where you started it (Ctrl-C there, or kill)."
            )


def cluster_banner(cluster: LocalCluster) -> list[str]:
    """Return the lines that a started cluster shows."""
    foqs = program_name()
    first, last = cluster.hosts[0], cluster.hosts[-1]
    lines = [
        "   ".join([f"{host.options['server.name']:<11}{host.address}", *_urls(host), f"pid {host.pid}"])
        for host in cluster.hosts
    ]
    regions = {} if cluster.region_database is None else cluster.region_database.regions
    lines += [
        f"{name:<11}127.0.0.1:{server.port}   {'in ' + regions[name] + '   ' if regions else ''}pid {server.pid}"
        for name, server in zip(cluster.database_names, cluster.databases, strict=True)
    ]
    lines.append(f"{'ZooKeeper':<11}{cluster.zookeeper.address}   pid {cluster.zookeeper.pid}")
    kept = (
        "they are deleted when this stops; --data FOLDER keeps them"
        if cluster.is_temporary
        else "delete that folder to start empty"
    )
    return [
        *lines,
        f"Data, logs and configurations are in {cluster.folder}; {kept}.",
        "For development, not for production: no TLS, no authentication, one machine.",
        "",
        "Try, in another terminal:",
        f"  export FOQS_ADDRESS={cluster.url}",
        f"  {foqs} cluster status",
        f"  {foqs} enqueue mail 'hello'",
        f"  {foqs} dequeue mail --wait 5s",
        *_region_lines(cluster),
        f"  kill -9 {first.pid}   # host1; look at the status again after some seconds: others take its shards over",
        f"  {foqs} host --config {first.config}   # host1 is back",
        f"  {foqs} host drain {last.options['server.name']}   # hands its shards over",
        f"  {foqs} upgrade {cluster.folder} --program PATH   # another version, host by host",
        "",
        *(
            [f"Or look at {first.console_url} in a browser: Cluster shows who owns what.", ""]
            if first.console_url
            else []
        ),
        "Stop with Ctrl-C.",
    ]


def _region_lines(cluster: LocalCluster) -> list[str]:
    """Return what to try with a database that has a server in each region."""
    if cluster.region_database is None:
        return []
    from foqs.dev.region_database import NAME, START_FILE

    foqs, other = program_name(), cluster.database_names[1]
    pid, folder = cluster.databases[1].pid, cluster.region_database.servers[other].folder
    return [
        f"  export FOQS_CONFIG={cluster.hosts[0].config}",
        f"  {foqs} region list",
        f"  {foqs} database move {NAME} --to {cluster.region_database.regions[other]}   # the primary, and the shards",
        f"  kill -9 {pid}   # {other}, the primary; look at the list again: hosts let another one take its place",
        f"  sh {folder / START_FILE} --init-rpl-role=SLAVE &   # {other} is back, without what was not acknowledged",
        f"  {foqs} database rejoin {NAME} {other}   # it acknowledges again",
    ]


def _urls(host: HostProcess) -> list[str]:
    """Return the other addresses of a host."""
    urls = {"console": host.console_url, "sqs": host.sqs_url}
    return [f"{name} {url}" for name, url in urls.items() if url is not None]


def _report_deaths(cluster: LocalCluster) -> None:
    """Report each process that dies, until a signal interrupts it."""
    alive: dict[str, ServerProcess] = {str(host.options["server.name"]): host for host in cluster.hosts}
    alive |= dict(zip(cluster.database_names, cluster.databases, strict=True))
    alive["ZooKeeper"] = cluster.zookeeper
    while True:
        time.sleep(_POLL_S)
        for name, server in list(alive.items()):
            code = server.exit_code
            if code is not None:
                if isinstance(server, HostProcess) and server.requested_command != server.command:
                    _replace_program(cluster, server, name)
                    continue
                del alive[name]
                how = f"was killed ({signal.Signals(-code).name})" if code < 0 else f"ended with exit code {code}"
                print_message(f"{name} (pid {server.pid}) {how}; its log is {server.folder / 'log'}")
                if isinstance(server, HostProcess):
                    cluster.write_description()


def _replace_program(cluster: LocalCluster, host: HostProcess, name: str) -> None:
    """Start a host with the program that was requested for it, or with the former one if that does not start.

    If neither starts, the host has ended.
    """
    former = host.command
    for command in (host.requested_command, former):
        host.command = command
        try:
            host.start()
        except (ServerNotAvailable, OSError) as error:
            print_message(f"{name} does not start with {' '.join(command)}: {error}")
            host.stop(signal.SIGKILL)
            host.request_command(former)
        else:
            print_message(f"{name} runs {' '.join(command)} (pid {host.pid})")
            break
    cluster.write_description()


def _host_ports(first: int, hosts: int, ports_per_host: int) -> Iterator[int]:
    """Return the ports of all hosts, in a row. Raises CommandFailed if one is in use."""
    from foqs.dev.server_process import free_port

    if first == 0:
        return (free_port() for _ in count())
    if first + ports_per_host * hosts > 65_536:
        raise CommandFailed(
            f"Port {first} leaves no room for the {ports_per_host * hosts} ports of {counted(hosts, 'host')}; choose a lower --port.",
            USAGE,
        )
    for number in range(first, first + ports_per_host * hosts):
        if port_problem("127.0.0.1", number, "port"):
            raise CommandFailed(
                f"Port {number} is in use by another process; a cluster of {counted(hosts, 'host')} needs {ports_per_host * hosts} ports in a row: "
                "choose the first with --port, or any free ports with --port 0.",
                USAGE,
            )
    return iter(range(first, first + ports_per_host * hosts))
