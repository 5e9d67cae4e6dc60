"""Tests of the examples in configs/: their files are valid, and their commands and options exist."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click
import pytest

from foqs.cli import root
from foqs.options.config import CLI_VARIABLES, load
from shardmgr.planner import PlannerPace
from tests.support.certificates import Authority, secret_file

CONFIGS: Final = Path(__file__).parents[3] / "configs"
UNIT: Final = (CONFIGS / "systemd" / "foqs-host@.service").read_text()
DEBIAN: Final = CONFIGS / "debian" / "etc"
COMPOSE: Final = (CONFIGS / "docker" / "compose.yml").read_text()
DOCKERFILE: Final = (CONFIGS / "docker" / "Dockerfile").read_text()


def environment(file: Path) -> dict[str, str]:
    lines = [line for line in file.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def assert_exists(arguments: Sequence[str]) -> None:
    """Assert that foqs has this command, with these options."""
    context = click.Context(root, info_name="foqs")
    command: click.Command = root
    rest = list(arguments)
    while isinstance(command, click.Group) and rest and (found := command.get_command(context, rest[0])):
        command, rest = found, rest[1:]
    assert command is not root
    known = {flag for param in command.params for flag in param.opts}
    assert {word for word in rest if word.startswith("-")} <= known, f"{command.name}: {rest}"


@pytest.mark.parametrize("number", [1, 2, 3])
def test_each_host_of_the_example_has_its_own_valid_configuration(number: int, tmp_path: Path) -> None:
    signed = Authority(tmp_path).sign("host1.example")
    text = (CONFIGS / "cluster" / "foqs.toml").read_text()
    text = text.replace("/etc/foqs/tls/host.crt", str(signed.cert)).replace("/etc/foqs/tls/host.key", str(signed.key))
    for name in re.findall(r"/etc/foqs/secrets/([\w.]+)", text):
        secret_file(tmp_path / name, f"foqs:secret-of-{name}\n".encode())
    file = tmp_path / "foqs.toml"
    file.write_text(text.replace("/etc/foqs/secrets", str(tmp_path)))
    config = load(file, environment(CONFIGS / "cluster" / f"host{number}.env"))
    assert (config.server.name, config.server.advertise) == (f"host{number}", f"host{number}.example:7411")
    assert list(config.databases) == ["db1", "db2"]
    assert config.auth.principals["operator"].admin
    assert PlannerPace().handover_timeout_ms < config.server.stop_timeout_ms


def test_each_host_of_the_compose_file_has_its_own_valid_configuration() -> None:
    text = COMPOSE.replace("${SUBNET:-172.30.74}", "172.30.74")
    found = re.findall(r"environment: \{FOQS_SERVER__NAME: (\w+), FOQS_SERVER__ADVERTISE: \"([\w.:]+)\"\}", text)
    assert [name for name, _ in found] == ["host1", "host2", "host3"]
    for name, address in found:
        config = load(CONFIGS / "docker" / "foqs.toml", {"FOQS_SERVER__NAME": name, "FOQS_SERVER__ADVERTISE": address})
        assert (config.server.name, config.server.advertise) == (name, address)
        assert f'networks: {{default: {{ipv4_address: "{address.removesuffix(":7411")}"}}}}' in text
        assert config.server.stop_timeout_ms < 30_000, "compose.yml gives a host 30 s"
    config = load(CONFIGS / "docker" / "foqs.toml", {"FOQS_SERVER__HOST": "127.0.0.1"})
    assert config.server.host == "127.0.0.1", "the configuration of init"
    services = set(re.findall(r"^  (\w+):$", COMPOSE.partition("\nservices:\n")[2].partition("\nnetworks:\n")[0], re.M))
    assert {options.parsed_url.host for options in config.databases.values()} | {"zookeeper"} <= services


def test_unit_file_starts_existing_commands_and_gives_a_host_time_to_stop() -> None:
    started = re.findall(r"^Exec\w+=(?!/bin/kill)(.*)$", UNIT, re.M)
    assert len(started) == 2
    for line in started:
        program, *arguments = shlex.split(line)
        assert program.endswith("/foqs")
        assert_exists(arguments)
    [stop_s] = re.findall(r"^TimeoutStopSec=(\d+)$", UNIT, re.M)
    example = load(None, {}, {}).server.stop_timeout_ms / 1_000
    assert int(stop_s) > 2 * example
    assert "KillSignal=SIGTERM" in UNIT


@pytest.mark.parametrize("name", ["foqs-host@.service", "foqs-worker@.service", "foqs-relay@.service"])
def test_systemd_verifies_the_units(tmp_path: Path, name: str) -> None:
    assert shutil.which("systemd-analyze"), "systemd-analyze is missing: make system-packages"
    text = (CONFIGS / "systemd" / name).read_text()
    assert "/opt/foqs/bin/foqs" in text
    file = tmp_path / name
    file.write_text(text.replace("/opt/foqs/bin/foqs", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(file)], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("unit", "example"), [("worker", "foqs-worker-mail"), ("relay", "foqs-relay-shop")])
def test_units_start_existing_commands_with_the_examples_variables(unit: str, example: str) -> None:
    variables = environment(DEBIAN / "default" / example)
    text = (CONFIGS / "systemd" / f"foqs-{unit}@.service").read_text()
    [line] = re.findall(r"^ExecStart=\S+/foqs (.*)$", text, re.M)
    for name, value in variables.items():
        line = line.replace(f"${{{name}}}", value).replace(f"${name}", value)
    assert "$" not in line
    assert_exists(shlex.split(line))
    assert {name for name in variables if name.startswith("FOQS_")} <= CLI_VARIABLES
    assert f"/etc/default/foqs-{unit}-%i" in text


def test_example_of_a_single_host_is_valid() -> None:
    config = load(DEBIAN / "foqs" / "foqs.toml", environment(DEBIAN / "foqs" / "main.env"))
    assert config.server.name == "main"
    assert config.store.parsed_url.path == "/var/lib/foqs"
    assert "StateDirectory=foqs\n" in UNIT


def test_every_file_of_the_debian_tree_is_tested() -> None:
    found = {str(path.relative_to(DEBIAN)) for path in DEBIAN.rglob("*") if path.is_file()}
    assert found == {"foqs/foqs.toml", "foqs/main.env", "default/foqs-worker-mail", "default/foqs-relay-shop"}


def test_containers_run_existing_commands() -> None:
    started = [json.loads(text) for text in re.findall(r"(?:command: |^CMD )(\[.*\])$", COMPOSE + DOCKERFILE, re.M)]
    assert len(started) == 3
    for arguments in started:
        assert_exists(arguments)


def test_commands_in_the_comments_exist() -> None:
    texts = [path.read_text() for path in sorted(CONFIGS.rglob("*")) if path.is_file() and path.suffix != ".yml"]
    lines = [line for text in [*texts, COMPOSE] for line in re.findall(r"^#  +(foqs .*?)(?:  +#.*)?$", text, re.M)]
    assert len(lines) >= 3
    for line in lines:
        assert_exists(shlex.split(line)[1:])


def test_examples_that_were_never_run_are_marked() -> None:
    units = [path.read_text() for path in (CONFIGS / "systemd").iterdir()]
    assert len(units) == 3
    for text in units:
        assert "not run" in text
