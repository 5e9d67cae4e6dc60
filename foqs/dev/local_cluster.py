"""A cluster on this machine: ZooKeeper, MariaDB servers and hosts, from installed packages.

Always true: hosts start after the servers that they need and end before them; `close`
ends every process by its id. With a given folder the data stays for the next cluster
in it; one cluster at a time uses a folder. Knows nothing of what hosts do.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import IO, Any, Final, Self

from foqs.dev import region_database
from foqs.dev.host_process import PROGRAM, HostProcess, program_environment, replace_file
from foqs.dev.mariadb_server import MariaDb
from foqs.dev.region_network import RegionNetwork
from foqs.dev.server_process import ServerNotAvailable, ServerProcess, free_port, run_program, temporary_folder
from foqs.dev.zookeeper_server import ZooKeeper
from foqs_client import Client, FoqsError, Routing
from shardmgr.private_files import FOLDER_MODE, make_private_folder

DATABASE: Final = "foqs"
DESCRIPTION_FILE: Final = "cluster.json"
LOCK_FILE: Final = "lock"
_SERVED_TIMEOUT_S: Final = 120.0
_POLL_S: Final = 0.1
_CALL_MS: Final = 2_000


@dataclass(slots=True, frozen=True)
class Programs:
    """The programs that a cluster runs.

    Attributes:
        zookeeper, database: create the servers, each with its folder.
        foqs: the command to run as `foqs`.
    """

    zookeeper: Callable[[Path], ZooKeeper] = ZooKeeper
    database: Callable[[Path], MariaDb] = MariaDb
    foqs: Sequence[str] = PROGRAM


INSTALLED: Final = Programs()
"""The programs of the installed packages."""


@dataclass(slots=True, frozen=True)
class RunningHost:
    """A host of a cluster that another process runs.

    Attributes:
        pid: None if it ended: that process does not start it again.
        program: the command that it runs.
        folder: the folder of its configuration, log and request.
    """

    name: str
    address: str
    http_port: int
    pid: int | None
    program: list[str]
    folder: str


def read_description(folder: Path) -> tuple[str, list[RunningHost]]:
    """Return the address and the hosts of the cluster that runs in a folder.

    Raises:
        ServerNotAvailable: no cluster runs there.
    """
    try:
        text = (folder / DESCRIPTION_FILE).read_text()
    except FileNotFoundError:
        text = ""
    # A process that was killed has left its description, but not its lock.
    if not text or not _is_locked(folder):
        raise ServerNotAvailable(f"no cluster runs in {folder}; foqs dev --cluster shows its folder")
    found = json.loads(text)
    return found["url"], [RunningHost(**host) for host in found["hosts"]]


def _is_locked(folder: Path) -> bool:
    """Return whether a process has reserved the folder; see `LocalCluster.lock_folder`."""
    try:
        lock = (folder / LOCK_FILE).open("rb")
    except FileNotFoundError:
        return False
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


class LocalCluster:
    """A cluster, as a context manager.

    Args:
        folder: the folder of the data; None: a temporary one, which is removed at the end.
        hosts, databases, shards: the numbers of each.
        port: returns a port; it is called twice for each host, for calls and for HTTP; with consoles once more for each,
            and with SQS, too.
        options: options of every host's configuration, by dotted name.
        with_consoles: every host serves the console.
        with_sqs: every host has an SQS server.
        regions: the number of regions, each with a server of one database and a host, which replace `hosts` and `databases`;
            0: databases of one server each.
        policy: with regions, the policy of their database.
        with_distance: with regions, data can take time from one to another: see `network`. It needs root.
    """

    def __init__(
        self,
        folder: Path | None = None,
        hosts: int = 3,
        databases: int = 2,
        shards: int = 8,
        port: Callable[[], int] = free_port,
        options: Mapping[str, Any] = MappingProxyType({}),
        programs: Programs = INSTALLED,
        with_consoles: bool = False,
        with_sqs: bool = False,
        regions: int = 0,
        policy: str = "semi-sync",
        with_distance: bool = False,
    ) -> None:
        if with_distance and not regions:
            raise ValueError("with_distance needs regions: only they have a distance")
        self.is_temporary = folder is None
        self.folder = temporary_folder("cluster") if folder is None else folder.resolve()
        self._lock: IO[bytes] | None = None
        self._program = programs.foqs
        self._shards = shards
        self._with_distance = with_distance
        self.network: RegionNetwork | None = None
        """The distance between the regions while the cluster runs; ZooKeeper is in the first one, as is this process. None:
        there is no distance."""
        try:
            self._make_folder(bool(regions))
            self.zookeeper = programs.zookeeper(self.folder / "zookeeper")
            self.region_database = (
                region_database.RegionDatabase(self.folder, regions, DATABASE, policy) if regions else None
            )
            if self.region_database is None:
                servers = {
                    f"db{number}": programs.database(self.folder / f"db{number}") for number in range(1, databases + 1)
                }
                places = {f"databases.{name}.url": server.url(DATABASE) for name, server in servers.items()}
                own: list[dict[str, Any]] = [{} for _ in range(hosts)]
            else:
                servers, places = self.region_database.servers, dict(self.region_database.options)
                own = [{"server.region": region} for region in self.region_database.regions.values()]
            self.database_names = [*servers]
            self.databases = [*servers.values()]
            ports = [(port(), port()) for _ in own]
            more = [_more_ports(port, with_consoles, with_sqs) for _ in own]
            self.hosts = [
                self._host(number, host_ports, {**places, **options, **own_options, **more_ports})
                for number, (host_ports, own_options, more_ports) in enumerate(zip(ports, own, more, strict=True), 1)
            ]
        except BaseException:
            self._remove_temporary_folder()
            raise

    def _make_folder(self, has_regions: bool) -> None:
        """Make the folder, if it is new. Raises ServerNotAvailable if it has a cluster of another kind."""
        is_new = self.is_temporary or not self.folder.exists()
        make_private_folder(self.folder)
        if is_new and (self.is_temporary or os.geteuid() == 0):
            self.folder.chmod(FOLDER_MODE | 0o011)  # MariaDB may run as another user
        other = self.folder / ("db1" if has_regions else region_database.PRIMARY)
        if other.exists():
            kind = "without" if has_regions else "with"
            raise ServerNotAvailable(
                f"{self.folder} has a cluster {kind} regions; name another folder, or start that one"
            )

    def _host(self, number: int, ports: tuple[int, int], options: Mapping[str, Any]) -> HostProcess:
        name = f"host{number}"
        call_port, http_port = ports
        of_all = {
            "server.name": name,
            "server.port": call_port,
            "server.http_port": http_port,
            "cluster.zookeeper": self.zookeeper.address,
            "cluster.zookeeper_tick_ms": self.zookeeper.tick_ms,
        }
        return HostProcess(self.folder / name, {**of_all, **options}, self._program, ready_path="/livez")

    @property
    def url(self) -> str:
        """The address of all hosts."""
        return "foqs://" + ",".join(f"127.0.0.1:{host.port}" for host in self.hosts)

    def set_up(self) -> None:
        """Start everything; return when every shard is served.

        Raises:
            ServerNotAvailable: something cannot be had; the text says why and what to do.
        """
        self.lock_folder()
        if self._with_distance:
            self._place_servers()
        with ThreadPoolExecutor() as pool:
            _set_up_all(pool, [self.zookeeper, *self.databases])
            self._prepare_databases()
            self.init_once()
            for host in self.hosts:
                host.command = host.requested_command
            _set_up_all(pool, self.hosts)
        self.write_description()
        self._wait_until_served()
        self._adopt_once()

    def close(self) -> None:
        """Stop the hosts, then their servers, and remove a temporary folder. An interrupt kills the rest."""
        servers: list[ServerProcess] = [*self.hosts, *self.databases, self.zookeeper]
        try:
            for group in (self.hosts, [*self.databases, self.zookeeper]):
                for server in group:
                    server.send_signal(signal.SIGTERM)
                for server in group:
                    server.stop()
        finally:
            for server in servers:
                server.stop(signal.SIGKILL)
                server.close()
            if self.network is not None:
                self.network.close()
                self.network = None
            (self.folder / DESCRIPTION_FILE).unlink(missing_ok=True)
            if self._lock is not None:
                self._lock.close()
            self._remove_temporary_folder()

    def _remove_temporary_folder(self) -> None:
        if self.is_temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            self.set_up()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def lock_folder(self) -> None:
        """Reserve the folder for this process until `close`. Raises ServerNotAvailable if another cluster runs in it."""
        lock = (self.folder / LOCK_FILE).open("ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise ServerNotAvailable(f"{self.folder} is in use by a running cluster; name another folder") from None
        self._lock = lock

    def init_once(self) -> None:
        """Create the cluster once for a folder, so that later changes of administrators stay."""
        done = self.folder / "initialised"
        if not done.exists():
            self.run_foqs("cluster", "init", "--shards", str(self._shards), "--yes")
            done.touch()

    def run_foqs(self, *arguments: str) -> str:
        """Run a command with the configuration of the first host, as an administrator does. Return its output.

        Raises:
            ServerNotAvailable: it failed; the text has its output.
        """
        command = [*self._program, *arguments, "--config", str(self.hosts[0].config)]
        return run_program(command, env=program_environment(self._program))

    def _place_servers(self) -> None:
        """Let each server and each host start in its region, and be reached from the others. Raises ServerNotAvailable."""
        assert self.region_database is not None
        regions = [*self.region_database.regions.values()]
        self.network = RegionNetwork(regions)
        self.network.publish(regions[0], self.zookeeper.port)
        for region, server, host in zip(regions, self.databases, self.hosts, strict=True):
            server.starts_in = host.starts_in = partial(self.network.inside, region)
            for port in (server.port, *host.ports):
                self.network.publish(region, port)

    def _prepare_databases(self) -> None:
        if self.region_database is None:
            for server in self.databases:
                server.query(f"CREATE DATABASE IF NOT EXISTS {DATABASE}")
            return
        self.region_database.write_start_files()
        if not self._adopted.exists():
            self.region_database.prepare()
        elif (regions := self._adopted.read_text()) != (wanted := str(len(self.databases))):
            raise ServerNotAvailable(f"{self.folder} has {regions} regions and not {wanted}; start it with these")

    def _adopt_once(self) -> None:
        """Let the hosts steer the servers of the database with regions, and wait until all shards are served again."""
        if self.region_database is None or self._adopted.exists():
            return
        self.region_database.follow()
        self.run_foqs(*self.region_database.adoption)
        self._adopted.write_text(str(len(self.databases)))
        self._wait_until_served()

    @property
    def _adopted(self) -> Path:
        """Has the number of regions, once the hosts steer their servers."""
        return self.folder / "adopted"

    def write_description(self) -> None:
        """Write which hosts run, for commands of other processes: see `read_description`."""
        hosts = [
            RunningHost(
                str(host.options["server.name"]),
                host.address,
                host.http_port,
                host.pid if host.exit_code is None else None,
                host.command,
                str(host.folder),
            )
            for host in self.hosts
        ]
        text = json.dumps({"url": self.url, "hosts": [asdict(host) for host in hosts]}, indent=1)
        replace_file(self.folder / DESCRIPTION_FILE, text)

    def _wait_until_served(self) -> None:
        """Wait until every shard is served, as one of the hosts sees it.

        Raises ServerNotAvailable if a host ends, or the time is over.
        """
        deadline = time.monotonic() + _SERVED_TIMEOUT_S
        while not asyncio.run(self._is_served()):
            for host in self.hosts:
                if host.exit_code is not None:
                    raise ServerNotAvailable(f"{host.name} ended with exit code {host.exit_code}:\n{host.log_tail()}")
            if time.monotonic() > deadline:
                raise ServerNotAvailable(
                    f"not every shard was served within {_SERVED_TIMEOUT_S:.0f} s:\n{self.hosts[0].log_tail()}"
                )
            time.sleep(_POLL_S)

    async def _is_served(self) -> bool:
        with contextlib.suppress(FoqsError):
            async with Client(self.url, timeout_ms=_CALL_MS) as client:
                return is_served(await client.routing(), len(self.hosts))
        return False


def _more_ports(port: Callable[[], int], with_console: bool, with_sqs: bool) -> dict[str, Any]:
    """Return the options of a host's further ports."""
    options: dict[str, Any] = {"server.console": True, "server.console_port": port()} if with_console else {}
    return {**options, "server.sqs_port": port()} if with_sqs else options


def is_served(routing: Routing, hosts: int) -> bool:
    """Return whether this number of hosts runs and every shard is served by one of them."""
    return len(routing.hosts) == hosts and bool(routing.shards) and all(s.state == "owned" for s in routing.shards)


def _set_up_all(pool: ThreadPoolExecutor, servers: Sequence[ServerProcess]) -> None:
    """Start servers concurrently."""
    for started in [pool.submit(server.set_up) for server in servers]:
        started.result()
