"""Tests of the addresses on which a host listens."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from foqs.cli.commands.host_process_commands import dev
from foqs.cli.listen_addresses import DEV_FLAGS, port_problem


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.mark.parametrize(
    ("option", "address"),
    [
        ("port", "server.host"),
        ("http_port", "server.http_host"),
        ("console_port", "server.console_host"),
        ("sqs_port", "server.host"),
    ],
)
def test_an_address_of_another_machine_is_named(option: str, address: str) -> None:
    assert f"set {address} to" in (port_problem("192.0.2.1", 0, option) or "")


@pytest.mark.parametrize("option", DEV_FLAGS)
def test_the_remedy_for_a_used_port_is_an_option_that_exists(taken: int, option: str) -> None:
    problem = port_problem("127.0.0.1", taken, option) or ""
    assert f"with {DEV_FLAGS[option]} (foqs dev) or server.{option} (configuration)" in problem
    assert DEV_FLAGS[option].split()[0] in {flag for parameter in dev.params for flag in parameter.opts}
