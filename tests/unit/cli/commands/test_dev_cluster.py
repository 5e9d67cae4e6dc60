"""Tests of foqs dev --cluster and of server processes. No database is started."""

from __future__ import annotations

import os
import signal
import socket
import stat
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, ClassVar, NoReturn

import pytest
from click.testing import CliRunner, Result

from foqs.cli import root
from foqs.cli.commands import dev_cluster
from foqs.dev import local_cluster, zookeeper_server
from foqs.dev import server_process as servers
from foqs.dev.host_process import HostProcess
from foqs.dev.local_cluster import LocalCluster, Programs, is_served, read_description
from foqs.dev.mariadb_server import MariaDb
from foqs.dev.region_database import RegionDatabase
from foqs.dev.server_process import ServerNotAvailable, ServerProcess
from foqs.options.config import load
from foqs_client import Host, Routing, Shard
from foqs_contract.size_ceilings import PAYLOAD_BYTES_CEILING


def run(*args: str) -> Result:
    return CliRunner().invoke(root, args)


class Sleeper(ServerProcess):
    """A process that does nothing or runs the given code."""

    name = "sleeper"

    def __init__(self, folder: Path | None = None, code: str = "import time; time.sleep(600)") -> None:
        super().__init__(folder)
        self._code = code

    def set_up(self) -> None:
        self.launch([sys.executable, "-c", self._code], lambda: "import" in self._code)


# ------------------------------------------------------------------------ servers


def test_server_runs_within_its_block_and_its_temporary_folder_is_deleted_after_it() -> None:
    with Sleeper() as server:
        assert server.exit_code is None
        assert server.folder.is_dir()
    assert server.exit_code == -signal.SIGTERM
    assert not server.folder.exists()


def test_free_ports_are_not_given_twice() -> None:
    ports = [servers.free_port() for _ in range(900)]
    assert len(set(ports)) == len(ports), "the kernel alone repeats about 15 of these"


def test_given_folder_is_not_deleted(tmp_path: Path) -> None:
    with Sleeper(tmp_path / "a"):
        pass
    assert (tmp_path / "a" / "log").exists()


def test_server_that_ends_by_itself_is_reported_with_its_log() -> None:
    server = Sleeper(code="raise SystemExit('no room')")
    with pytest.raises(ServerNotAvailable, match=r"sleeper ended with exit code 1:\n.*no room"), server:
        pass
    assert not server.folder.exists()


def test_a_server_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    deaf = (
        "import signal, time, pathlib; signal.signal(15, signal.SIG_IGN); pathlib.Path('deaf').touch(); time.sleep(600)"
    )
    server = Sleeper(tmp_path, deaf)
    monkeypatch.setattr(server, "stop_timeout_s", 0.01)
    server.launch([sys.executable, "-c", deaf], (tmp_path / "deaf").exists, cwd=tmp_path)
    server.close()
    assert server.exit_code == -signal.SIGKILL


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(servers, "SEARCH_PATH", "")
    monkeypatch.setattr(zookeeper_server, "JARS", tmp_path)


@pytest.mark.usefixtures("nothing_installed")
def test_a_missing_package_is_named_with_the_line_that_installs_it(tmp_path: Path) -> None:
    with (
        pytest.raises(ServerNotAvailable, match="apt-get install default-jre-headless"),
        zookeeper_server.ZooKeeper(tmp_path / "z"),
    ):
        pass
    with pytest.raises(ServerNotAvailable, match="apt-get install mariadb-server"), MariaDb(tmp_path / "m"):
        pass


def test_missing_jars_are_named_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(zookeeper_server, "JARS", tmp_path)
    monkeypatch.setattr(zookeeper_server, "find_program", lambda name, package: name)
    with (
        pytest.raises(ServerNotAvailable, match="apt-get install zookeeper"),
        zookeeper_server.ZooKeeper(tmp_path / "z"),
    ):
        pass


def test_a_path_that_is_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ServerNotAvailable, match="too long a path"):
        MariaDb(tmp_path / ("x" * 100))


# ------------------------------------------------------------------------ cluster


def test_every_host_has_a_valid_configuration_of_its_own(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, hosts=3, options={"log.level": "debug"})
    configs = [load(host.config, {}, {}) for host in cluster.hosts]
    assert [config.server.name for config in configs] == ["host1", "host2", "host3"]
    assert len({port for config in configs for port in (config.server.port, config.server.http_port)}) == 6
    for config in configs:
        assert config.cluster.zookeeper == cluster.zookeeper.address
        assert {name: options.parsed_url.port for name, options in config.databases.items()} == {
            "db1": cluster.databases[0].port,
            "db2": cluster.databases[1].port,
        }
        assert config.log.level == "debug"


def test_a_folder_that_exists_keeps_its_rights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    for mode in (0o1777, 0o750):
        tmp_path.chmod(mode)
        LocalCluster(tmp_path)
        assert stat.S_IMODE(tmp_path.stat().st_mode) == mode
    LocalCluster(tmp_path / "new")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o711


def test_a_folder_serves_one_cluster_at_a_time(tmp_path: Path) -> None:
    first, second = LocalCluster(tmp_path), LocalCluster(tmp_path)
    first.lock_folder()
    with pytest.raises(ServerNotAvailable, match="in use by a running cluster"):
        second.lock_folder()
    first.close()
    second.lock_folder()
    second.close()


def test_a_cluster_is_initialised_once_for_a_folder(tmp_path: Path) -> None:
    arguments = tmp_path / "arguments"
    command = [
        sys.executable,
        "-c",
        f"import sys; open({str(arguments)!r}, 'a').write(' '.join(sys.argv[1:]) + chr(10))",
    ]
    for _ in range(2):
        LocalCluster(tmp_path / "c", shards=5, programs=Programs(foqs=command)).init_once()
    [line] = arguments.read_text().splitlines()
    assert line == f"cluster init --shards 5 --yes --config {tmp_path / 'c' / 'host1' / 'foqs.toml'}"


def test_failed_initialisation_is_tried_again(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(ServerNotAvailable, match="no such luck"):
            LocalCluster(
                tmp_path, programs=Programs(foqs=[sys.executable, "-c", "raise SystemExit('no such luck')"])
            ).init_once()


def test_nothing_is_left_when_a_part_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []

    def stub(self: ServerProcess) -> None:
        if self.name == "zookeeper":
            raise ServerNotAvailable("apt-get install zookeeper")

    for kind in (MariaDb, zookeeper_server.ZooKeeper):
        monkeypatch.setattr(kind, "set_up", stub)
        monkeypatch.setattr(
            kind, "stop", lambda self, number=signal.SIGTERM: ended.append(f"{self.name} {number.name}")
        )
    cluster = LocalCluster(hosts=1, databases=2)
    with pytest.raises(ServerNotAvailable, match="apt-get install zookeeper"), cluster:
        pass
    assert ended[:3] == ["mariadb SIGTERM", "mariadb SIGTERM", "zookeeper SIGTERM"]
    assert {"mariadb SIGKILL", "zookeeper SIGKILL"} <= set(ended[3:])
    assert not cluster.folder.exists()


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The only temporary folder. Its path is short, as servers need it."""
    with TemporaryDirectory() as found:
        monkeypatch.setattr(tempfile, "tempdir", found)
        yield Path(found)


def test_nothing_is_left_of_a_cluster_that_cannot_be_made(temporary: Path) -> None:
    def no_port() -> int:
        raise OSError("no port is free")

    with pytest.raises(OSError, match="no port is free"):
        LocalCluster(port=no_port)
    assert [*temporary.iterdir()] == []


def test_nothing_is_left_of_a_cluster_whose_regions_can_have_no_distance(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Sequence[str]) -> NoReturn:
        raise ServerNotAvailable("a distance between regions needs root")

    monkeypatch.setattr(local_cluster, "RegionNetwork", refuse)
    with pytest.raises(ServerNotAvailable, match="needs root"), LocalCluster(regions=3, with_distance=True):
        pass
    assert [*temporary.iterdir()] == []


class Closing:
    """The distance between regions, of which one port cannot be reached."""

    is_closed = False

    def __init__(self, _: Sequence[str]) -> None:
        self.published: list[int] = []

    def publish(self, _: str, port: int) -> None:
        self.published.append(port)
        if port == 2_005:
            raise ServerNotAvailable("port 2005 is in use")

    def inside(self, _: str) -> NoReturn:
        raise AssertionError("nothing is started")

    def close(self) -> None:
        Closing.is_closed = True


def test_distance_between_regions_ends_if_a_port_is_in_use(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Closing, "is_closed", False)
    monkeypatch.setattr(local_cluster, "RegionNetwork", Closing)
    ports = iter(range(2_000, 2_012))
    cluster = LocalCluster(port=ports.__next__, with_consoles=True, with_sqs=True, regions=3, with_distance=True)
    with pytest.raises(ServerNotAvailable, match="port 2005 is in use"), cluster:
        pass
    assert Closing.is_closed
    assert [*temporary.iterdir()] == []


def test_every_port_of_a_host_is_reached_from_other_regions(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Closing] = []

    def make(regions: Sequence[str]) -> Closing:
        made.append(Closing(regions))
        return made[-1]

    monkeypatch.setattr(local_cluster, "RegionNetwork", make)
    ports = iter(range(3_000, 3_012))
    cluster = LocalCluster(port=ports.__next__, with_consoles=True, with_sqs=True, regions=3, with_distance=True)
    cluster._place_servers()
    cluster.close()
    assert set(range(3_000, 3_012)) < set(made[0].published)
    with pytest.raises(ValueError, match="with_distance needs regions"):
        LocalCluster(with_distance=True)


def test_cluster_is_ready_when_its_hosts_own_every_shard() -> None:
    host = Host("h", 1, None, None, 1, False, None, None)
    owned = Shard(0, None, ("h", 1), 1, "owned", None, None, None)
    waits = Shard(1, None, ("h", 1), 1, "acquiring", None, None, None)
    assert is_served(Routing(1, [host, host], [owned]), 2)
    assert not is_served(Routing(1, [host], [owned]), 2)
    assert not is_served(Routing(1, [host, host], [owned, waits]), 2)
    assert not is_served(Routing(1, [host, host], []), 2)


# ------------------------------------------------------------------------ command


class Started:
    """A fake cluster that records its calls."""

    def __init__(
        self,
        folder: Path | None,
        hosts: int,
        databases: int,
        shards: int,
        port: Callable[[], int],
        options: Mapping[str, Any],
        programs: Programs,
        with_consoles: bool,
        with_sqs: bool,
        regions: int,
    ) -> None:
        self.regions = regions
        self.region_database: RegionDatabase | None = None
        if regions:
            assert folder is not None
            self.region_database = RegionDatabase(folder, regions, "foqs")
            databases = regions
        self.database_names = list("abcde"[:regions]) or [f"db{number}" for number in range(1, databases + 1)]
        self.given = (folder, hosts, databases, shards)
        self.options = options
        self.programs = programs
        self.with_consoles = with_consoles
        self.with_sqs = with_sqs
        self.ports = [port() for _ in range(2 * hosts)]
        self.is_temporary = folder is None
        self.folder = folder or Path("/tmp/x")
        self.closed = 0
        self.hosts = [self._server(n, f"host{n}") for n in range(1, hosts + 1)]
        self.databases = [self._server(n + 20, "") for n in range(databases)]
        self.zookeeper = self._server(99, "")
        ALL.append(self)

    def _server(self, number: int, name: str) -> Any:
        port = self.ports[2 * number - 2] if name else number
        place = {
            "port": port,
            "console_url": f"http://127.0.0.1:{port + 1}/" if self.with_consoles else None,
            "sqs_url": f"http://127.0.0.1:{port + 2}" if self.with_sqs else None,
            "pid": 1_000 + number,
            "exit_code": None,
            "folder": self.folder,
        }
        return SimpleNamespace(
            is_ok=lambda path: name in self.others and self.closed == 1,
            **place,
            address=f"foqs://127.0.0.1:{port}",
            options={"server.name": name},
            config=self.folder / "foqs.toml",
        )

    url = LocalCluster.url
    others: ClassVar[Collection[str]] = ()
    """Hosts of another process that replace the lost ones."""

    def set_up(self) -> None:
        self.hosts[0].exit_code = -9

    def close(self) -> None:
        self.closed += 1


ALL: list[Started] = []


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sequence[Started]]:
    """The clusters that a command started; each is interrupted after one look at its processes."""
    looks = iter([None, None])

    def interrupted(seconds: float) -> None:
        if next(looks, "over") == "over":
            raise KeyboardInterrupt

    monkeypatch.setattr("foqs.dev.local_cluster.LocalCluster", Started)
    monkeypatch.setattr(dev_cluster, "time", SimpleNamespace(sleep=interrupted))
    ALL.clear()
    yield ALL
    assert all(cluster.closed == 1 for cluster in ALL)


def test_banner_shows_addresses_and_commands_to_try(started: Sequence[Started], tmp_path: Path) -> None:
    result = run("dev", "--cluster", "2", "--port", "0", "--data", str(tmp_path), "--shards", "6")
    assert result.exit_code == 0, result.output
    [cluster] = started
    assert cluster.given == (tmp_path, 2, 2, 6)
    for words in (
        "host1",
        f"console http://127.0.0.1:{cluster.hosts[0].port + 1}/",
        f"Or look at http://127.0.0.1:{cluster.hosts[0].port + 1}/ in a browser",
        "pid 1001",
        "pid 1002",
        "db2",
        "ZooKeeper",
        "delete that folder",
        "not for production",
    ):
        assert words in result.stdout
    ports = [host.port for host in cluster.hosts]
    assert f"export FOQS_ADDRESS=foqs://127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}\n" in result.stdout
    assert "kill -9 1001" in result.stdout


def test_banner_of_regions_shows_where_servers_are_and_how_the_primary_moves(
    started: Sequence[Started], tmp_path: Path
) -> None:
    result = run("dev", "--regions", "3", "--port", "0", "--data", str(tmp_path))
    assert result.exit_code == 0, result.output
    [cluster] = started
    assert (cluster.regions, cluster.given) == (3, (tmp_path, 3, 3, 8))
    assert "Starting ZooKeeper, 3 MariaDB servers and 3 hosts" in result.stderr
    for words in (
        "a          127.0.0.1:20   in r1   pid 1020",
        "database move main --to r2 ",
        f"sh {tmp_path / 'b' / 'start'} --init-rpl-role=SLAVE &",
        "database rejoin main b ",
    ):
        assert words in result.stdout
    both = run("dev", "--regions", "3", "--cluster", "3")
    assert (both.exit_code, "not both" in both.stderr) == (2, True)


def test_hosts_of_regions_have_one_database_and_a_region_each(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path / "c", regions=3)
    configs = [load(host.config, {}, {}) for host in cluster.hosts]
    assert [config.server.region for config in configs] == ["r1", "r2", "r3"]
    assert cluster.region_database is not None
    servers = {name: ("127.0.0.1", server.port) for name, server in cluster.region_database.servers.items()}
    for config in configs:
        [(name, options)] = config.databases.items()
        assert (name, options.server_addresses) == ("main", servers)
        assert options.parsed_url.port == servers["a"][1]
    cluster.region_database.write_start_files()
    script = cluster.folder / "b" / "start"
    assert stat.S_IMODE(script.stat().st_mode) == 0o755
    assert "--server-id=12" in script.read_text()
    # A second run in the folder has the password of the first one.
    password = (cluster.folder / "replica-password").read_text()
    LocalCluster(tmp_path / "c", regions=3)
    assert (cluster.folder / "replica-password").read_text() == password


def test_folder_of_a_cluster_of_another_kind_is_refused(tmp_path: Path) -> None:
    LocalCluster(tmp_path / "regions", regions=3)
    with pytest.raises(ServerNotAvailable, match="has a cluster with regions; name another folder"):
        LocalCluster(tmp_path / "regions")
    LocalCluster(tmp_path / "plain")
    with pytest.raises(ServerNotAvailable, match="has a cluster without regions; name another folder"):
        LocalCluster(tmp_path / "plain", regions=3)
    (tmp_path / "regions" / "adopted").write_text("3")
    with pytest.raises(ServerNotAvailable, match="has 3 regions and not 4; start it with these"):
        LocalCluster(tmp_path / "regions", regions=4)._prepare_databases()


def test_a_folder_that_configurations_cannot_name_is_refused(tmp_path: Path) -> None:
    refused = run("dev", "--cluster", "1", "--port", "0", "--data", os.fsdecode(bytes(tmp_path) + b"/da\xffta"))
    assert refused.exit_code == 2
    assert "da\\udcffta is not UTF-8; with --cluster, choose another --data" in refused.stderr


def test_every_host_has_an_sqs_port_if_it_is_wanted(started: Sequence[Started], tmp_path: Path) -> None:
    result = run("dev", "--cluster", "2", "--port", "0", "--sqs")
    assert result.exit_code == 0, result.output
    [cluster] = started
    assert f"sqs http://127.0.0.1:{cluster.hosts[1].port + 2}   pid 1002" in result.stdout
    assert cluster.options == {"namespace.payload_bytes_max": PAYLOAD_BYTES_CEILING}
    assert run("dev", "--cluster", "1", "--port", "0").exit_code == 0
    assert "sqs http" not in run("dev", "--cluster", "1", "--port", "0").stdout
    refused = run("dev", "--cluster", "2", "--sqs", "7500")
    assert (refused.exit_code, "--sqs takes no port" in refused.stderr) == (2, True)
    hosts = LocalCluster(
        tmp_path, hosts=2, port=iter(range(2_000, 2_008)).__next__, with_consoles=True, with_sqs=True
    ).hosts
    assert [host.sqs_url for host in hosts] == ["http://127.0.0.1:2005", "http://127.0.0.1:2007"]
    assert [load(host.config, {}, {}).server.sqs_port for host in hosts] == [2_005, 2_007]


def test_hosts_run_the_named_program(started: Sequence[Started], tmp_path: Path) -> None:
    program = tmp_path / "foqs"
    program.touch()
    assert run("dev", "--cluster", "1", "--port", "0", "--program", str(program)).exit_code == 0
    assert started[0].programs.foqs == [str(program)]
    alone = run("dev", "--program", str(program))
    assert (alone.exit_code, "give --cluster or --regions too" in alone.stderr) == (2, True)


class Restarted(HostProcess):
    """A host that only some programs can start. It ran before."""

    starts: ClassVar[list[list[str]]] = []
    ended: int | None = None

    @property
    def pid(self) -> int:
        return 7

    @property
    def exit_code(self) -> int | None:
        return self.ended

    def start(self) -> None:
        self.starts.append(self.command)
        self.ended = 3 if self.command[0].startswith("broken") else None
        if self.command == ["broken file"]:
            raise OSError("exec format error")
        if self.ended is not None:
            raise ServerNotAvailable("it ended with 3")


@pytest.fixture
def restarted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    """A cluster with one such host, which runs; nothing is started."""
    monkeypatch.setattr(Restarted, "starts", [])
    cluster = LocalCluster(tmp_path, hosts=1)
    cluster.hosts[0] = Restarted(tmp_path / "host1", {"server.name": "host1"}, ["former"])
    cluster.lock_folder()
    yield cluster
    cluster.close()


@pytest.mark.parametrize(("requested", "runs"), [("newer", "newer"), ("broken", "former"), ("broken file", "former")])
def test_a_requested_program_is_started_or_the_former_one_again(
    restarted: LocalCluster, requested: str, runs: str
) -> None:
    [host] = restarted.hosts
    assert host.requested_command == ["former"]
    host.request_command([requested])
    dev_cluster._replace_program(restarted, host, "host1")
    assert (host.command, host.requested_command, Restarted.starts[0]) == ([runs], [runs], [requested])
    _, [described] = read_description(restarted.folder)
    assert (described.name, described.program, described.pid) == ("host1", [runs], 7)


def test_a_host_that_no_program_starts_has_ended_and_the_others_run_on(restarted: LocalCluster) -> None:
    [host] = restarted.hosts
    host.command = ["broken former"]
    host.request_command(["broken"])
    dev_cluster._replace_program(restarted, host, "host1")
    assert Restarted.starts == [["broken"], ["broken former"]]
    assert host.requested_command == host.command
    _, [described] = read_description(restarted.folder)
    assert described.pid is None


def test_an_upgrade_is_refused_while_a_host_of_the_cluster_has_ended(
    restarted: LocalCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """foqs upgrade would end the process that has the id of the host now."""
    [host] = restarted.hosts
    assert isinstance(host, Restarted)
    host.ended = -9
    interrupted = iter([None])
    monkeypatch.setattr(dev_cluster, "time", SimpleNamespace(sleep=lambda seconds: next(interrupted)))
    with pytest.raises(StopIteration):
        dev_cluster._report_deaths(restarted)
    program = tmp_path / "foqs"
    program.touch(mode=0o755)
    refused = run("upgrade", str(restarted.folder), "--program", str(program))
    assert refused.exit_code == 1
    assert refused.stderr.startswith("Error: host1 ended, and foqs dev does not run it any more")
    assert not host.starts


def test_a_program_that_cannot_be_run_changes_nothing(restarted: LocalCluster, tmp_path: Path) -> None:
    restarted.write_description()
    program = tmp_path / "foqs"
    program.touch(mode=0o755)
    refused = run("upgrade", str(restarted.folder), "--program", str(program))
    assert (refused.exit_code, f"{program} cannot be run, so no host was changed" in refused.stderr) == (1, True)
    assert restarted.hosts[0].requested_command == ["former"]


def test_an_upgrade_is_refused_after_the_process_that_ran_the_cluster_was_killed(
    restarted: LocalCluster, tmp_path: Path
) -> None:
    restarted.close()
    restarted.write_description()  # its death leaves this file behind, and no lock
    program = tmp_path / "foqs"
    program.touch(mode=0o755)
    refused = run("upgrade", str(restarted.folder), "--program", str(program))
    assert (refused.exit_code, f"no cluster runs in {restarted.folder}" in refused.stderr) == (1, True)


def test_dead_process_is_reported_once(started: Sequence[Started]) -> None:
    result = run("dev", "--cluster", "3", "--port", "0")
    assert result.stderr.count("host1 (pid 1001) was killed (SIGKILL)") == 1
    assert "Stopped." in result.stderr
    assert "--data FOLDER keeps them" in result.stdout


def test_host_started_by_the_user_is_named_if_it_outlives_the_cluster(
    started: Sequence[Started], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Started, "others", ("host1",))
    result = run("dev", "--cluster", "3", "--port", "0")
    [cluster] = started
    assert f"host1 at {cluster.hosts[0].address} still runs" in result.stderr
    assert "stop it where you started it" in result.stderr
    assert "host2 at" not in result.stderr


@pytest.mark.parametrize(
    "options", [["--store", "memory:"], ["--http-port", "1"], ["--listen", "::"], ["--insecure-listen"]]
)
def test_options_of_a_single_host_are_refused(started: Sequence[Started], options: list[str]) -> None:
    result = run("dev", "--cluster", "3", *options)
    assert result.exit_code == 2
    assert "only with --data, --shards, --port, --sqs and --program" in result.stderr
    assert run("dev", "--regions", "3", *options).stderr == result.stderr
    assert not started


def test_port_in_use_is_one_sentence_before_anything_is_started(started: Sequence[Started]) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        result = run("dev", "--cluster", "1", "--port", str(port))
    assert result.exit_code == 2
    assert f"Port {port} is in use" in result.stderr
    assert run("dev", "--cluster", "3", "--port", "65533").exit_code == 2
    assert not started


def test_failed_start_is_reported_and_everything_else_is_stopped(
    started: Sequence[Started], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(self: Started) -> None:
        raise ServerNotAvailable("java is not installed: apt-get install default-jre-headless")

    monkeypatch.setattr(Started, "set_up", missing)
    result = run("dev", "--cluster", "3", "--port", "0")
    assert result.exit_code == 1
    assert "Error: java is not installed: apt-get install default-jre-headless" in result.stderr
    assert len(started) == 1
