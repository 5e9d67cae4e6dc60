"""Tests of the addresses on which a host listens."""

from __future__ import annotations

from foqs.cli.listen_addresses import port_problem


def test_an_address_of_another_machine_is_named() -> None:
    assert "server.host" in (port_problem("192.0.2.1", 0, "port") or "")
