"""Tests of the commands dev, host, config and doctor, without a running host."""

from __future__ import annotations

import json
import re
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from foqs.cli import root
from foqs.cli.commands.host_process_commands import dev_banner
from foqs.cli.doctor import host_checks
from foqs.host_constants import HOST_CONSTANTS, HostConstants
from foqs.options.config import Config, load
from foqs_client import Unreachable


def run(*args: str, **environment: str) -> Result:
    return CliRunner().invoke(root, args, env=environment)


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """The configurations that hosts were started with; none is started."""
    configs: list[Config] = []

    def run_host(config: Config, on_ready: Callable[[Config], None], constants: HostConstants) -> int:
        configs.append(config)
        assert constants == HOST_CONSTANTS
        on_ready(config)
        return 0

    monkeypatch.setitem(sys.modules, "foqs.host_run", SimpleNamespace(run_host=run_host))
    monkeypatch.setattr("foqs.telemetry.logs.setup_logging", lambda *args: None)
    return configs


# ------------------------------------------------------------------ dev, host


def test_dev_starts_a_host_with_its_options(started: list[Config]) -> None:
    result = run("dev", "--data", "/tmp/q", "--port", "0", "--http-port", "0", "--shards", "2", FOQS_LOG__LEVEL="error")
    assert result.exit_code == 0, result.output
    [config] = started
    assert config.store.url == "sqlite:/tmp/q"
    assert (config.store.shards, config.server.port, config.log.level) == (2, 0, "error")


def test_dev_banner_shows_addresses_data_and_commands(started: list[Config]) -> None:
    result = run("dev", "--port", "0", "--http-port", "0")
    assert result.stderr == "Starting a host ...\n"
    assert "Thrift   foqs://127.0.0.1:" in result.stdout
    assert str(Path("foqs-data").resolve()) in result.stdout
    assert "not for production" in result.stdout
    assert "enqueue mail 'hello'" in result.stdout
    assert re.search(r"Or look at http://127\.0\.0\.1:\d+/ in a browser", result.stdout)


def test_the_next_command_names_a_port_that_is_not_the_usual() -> None:
    banner = "\n".join(dev_banner(load(None, {}, {"server.port": 7500, "store.url": "memory:"})))
    assert "--address foqs://127.0.0.1:7500" in banner
    assert "lost when this stops" in banner
    assert "in a browser" not in banner
    assert "--address" not in "\n".join(dev_banner(Config()))


def test_port_in_use_is_one_sentence_with_port_and_option(started: list[Config], taken: int) -> None:
    for option, flag in (("port", "--port"), ("http_port", "--http-port")):
        other = "--http-port" if flag == "--port" else "--port"
        result = run("dev", flag, str(taken), other, "0")
        assert result.exit_code == 2
        assert result.stderr.startswith(f"Error: Port {taken} on 127.0.0.1 is in use")
        assert f"{flag} (foqs dev) or server.{option}" in result.stderr
        assert len(result.stderr.splitlines()) == 1
    assert started == []


def test_host_runs_its_file(started: list[Config], tmp_path: Path) -> None:
    file = tmp_path / "foqs.toml"
    file.write_text('[server]\nport = 0\nhttp_port = 0\n[store]\nurl = "memory:"\n')
    result = run("host", "--config", str(file), "--unsafe-durability")
    assert result.exit_code == 0
    assert result.stdout == ""
    assert started[0].store.unsafe_durability is True
    assert run("host", FOQS_CONFIG=str(file)).exit_code == 0


def test_listening_beyond_loopback_must_be_accepted(started: list[Config]) -> None:
    refused = run("dev", "--listen", "0.0.0.0", "--port", "0", "--http-port", "0")
    assert refused.exit_code == 2
    assert "--insecure-listen" in refused.stderr
    assert run("dev", "--listen", "0.0.0.0", "--port", "0", "--http-port", "0", "--insecure-listen").exit_code == 0
    assert [config.server.host for config in started] == ["0.0.0.0"]


# --------------------------------------------------------------------- config


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[server]\nprot = 1", "server.prot: there is no such option; did you mean server.port?"),
        ("[server]\nport = 'x'", "server.port: should be a valid integer, not 'x'; the default is 7411"),
        ("[server]\nport = 65_536", "server.port: should be less than or equal to 65535"),
        ("[server]\nport = 1979-01-01", "server.port: should be a valid integer"),
        ("[server]\nport = {a = 1}", "server.port: should be a valid integer"),
        ("[[server]]\nport = 1", "server: this is a section, not a value"),
        ("server = 1", "server: this is a section, not a value"),
        ("[namespaces]\na = 1", "namespaces: namespaces are no longer configured here"),
        ("[server\n", "it is not TOML (Expected ']' at the end of a table declaration (at line 1, column 8))"),
        ("[store]\npassword_file = 'absent'", "store.password_file: it cannot be read (No such file"),
        (
            "[server]\nport = {taken}\nhttp_port = 0",
            "server.port: Port {taken} on 127.0.0.1 is in use by another process",
        ),
        ("[server]\nport = 0\nhttp_port = {taken}", "server.http_port: Port {taken} on 127.0.0.1 is in use"),
        ("[server]\nport = 0\nhost = '192.0.2.1'\ninsecure_listen = true", "server.port: Cannot listen on 192.0.2.1"),
        (None, "there is no such file"),
        (b"\xff", "it is not UTF-8 text"),
    ],
)
def test_a_host_that_cannot_use_its_configuration_says_why_in_one_line(
    started: list[Config], tmp_path: Path, taken: int, text: str | bytes | None, words: str
) -> None:
    file = tmp_path / "foqs.toml"
    if isinstance(text, str):
        text = text.replace("{taken}", str(taken)).encode()
    if text is not None:
        file.write_bytes(text)
    result = run("host", "--config", str(file))
    assert result.exit_code == 2
    [line] = result.stderr.splitlines()
    where = "absent: " if "password_file" in words else f"{file}: "
    assert line.startswith(f"Error: {where}")
    assert words.replace("{taken}", str(taken)) in line
    assert result.stdout == ""
    assert started == []


def test_config_default_prints_the_shipped_file() -> None:
    result = run("config", "default")
    assert result.exit_code == 0
    assert result.stdout == Config().to_toml()


def test_config_check_accepts_a_good_file_and_names_a_bad_key(tmp_path: Path) -> None:
    file = tmp_path / "foqs.toml"
    file.write_text("[server]\nport = 7500\n")
    good = run("config", "check", str(file))
    assert (good.exit_code, good.stderr) == (0, "")
    assert "valid" in good.stdout
    assert "7500" in good.stdout
    file.write_text("[server]\nprot = 7500\n")
    bad = run("config", "check", str(file))
    assert (bad.exit_code, bad.stdout) == (2, "")
    assert bad.stderr.startswith(f"Error: {file}: server.prot: ")
    assert len(bad.stderr.splitlines()) == 1
    assert run("config", "check", FOQS_SERVER__PORT="x").exit_code == 2


# --------------------------------------------------------------------- doctor


class NoClient:
    """A client that reaches no host."""

    def __init__(self, *args: Any) -> None:
        pass

    async def __aenter__(self) -> NoClient:
        raise Unreachable("it answers nothing")

    async def __aexit__(self, *why: object) -> None:
        pass


def examine(*args: str, **environment: str) -> tuple[int, dict[str, dict[str, Any]]]:
    result = CliRunner().invoke(root, ["doctor", "-o", "json", *args], obj=NoClient, env=environment)
    return result.exit_code, {row["check"]: row for row in json.loads(result.stdout)}


@pytest.fixture
def healthy(tmp_path: Path) -> dict[str, str]:
    return {
        "FOQS_STORE__URL": f"sqlite:{tmp_path}/new/data",
        "FOQS_SERVER__PORT": "0",
        "FOQS_SERVER__HTTP_PORT": "0",
    }


def test_doctor_finds_no_problem_and_leaves_no_trace(healthy: dict[str, str], tmp_path: Path) -> None:
    code, found = examine(**healthy)
    assert code == 0
    assert set(found) == {
        "Configuration",
        "Python",
        "SQLite",
        "Libraries",
        "Calls",
        "HTTP",
        "Data folder",
        "Disk",
        "Store",
        "Schema",
        "Files",
        "Catalog",
    }
    assert {row["state"] for row in found.values()} <= {"ok", "warning"}
    assert list(tmp_path.iterdir()) == []


def test_doctor_names_each_problem_with_a_remedy(healthy: dict[str, str], taken: int, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, found = examine(
        **healthy | {"FOQS_SERVER__PORT": str(taken), "FOQS_STORE__URL": f"sqlite:{tmp_path}/file/data"}
    )
    assert code == 5
    bad = {name for name, row in found.items() if row["state"] == "bad"}
    assert {"Calls", "Data folder", "Store"} <= bad
    assert all(found[name]["remedy"] for name in bad)
    assert str(taken) in found["Calls"]["remedy"]


def test_doctor_looks_further_when_the_configuration_is_bad() -> None:
    code, found = examine(FOQS_SERVER__PORT="x")
    assert code == 5
    assert found["Configuration"]["state"] == "bad"
    assert found["Python"]["state"] == "ok"
    assert "Store" not in found


def test_doctor_warns_of_memory_and_of_accepted_weak_durability(healthy: dict[str, str]) -> None:
    assert examine(**healthy | {"FOQS_STORE__URL": "memory:"})[1]["Store"]["state"] == "warning"
    assert examine(**healthy | {"FOQS_STORE__UNSAFE_DURABILITY": "true"})[1]["Store"]["state"] == "warning"


def test_doctor_finds_a_database_that_is_down(healthy: dict[str, str], taken: int) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"mysql://foqs@127.0.0.1:{closed.getsockname()[1]}/queue"
        code, found = examine(**healthy | {"FOQS_STORE__URL": url})
    assert code == 5
    assert found["Store"]["state"] == "bad"


def test_doctor_finds_a_disk_that_is_nearly_full(healthy: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_checks, "DISK_BYTES_MIN", 1 << 60)
    monkeypatch.setattr(host_checks, "DISK_BYTES_WARNING", 1 << 61)
    code, found = examine(**healthy)
    assert code == 5
    assert found["Disk"]["state"] == "bad"
