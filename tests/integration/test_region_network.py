"""Data takes its time between the regions of a machine, and none within one."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from foqs.dev.region_network import RegionNetwork
from tests.support.ports import free_port
from tests.support.region_networks import network

pytestmark = pytest.mark.process

__all__ = ["network"]

_DELAY_S = 0.05


@pytest.fixture
def port(network: RegionNetwork) -> Iterator[int]:
    """A port of r2 that sends everything back, one connection after the other."""
    with network.inside("r2"):
        listener = socket.create_server(("127.0.0.1", free_port()))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                while data := connection.recv(100):
                    connection.sendall(data)

    thread = threading.Thread(target=serve)
    thread.start()
    network.publish("r2", listener.getsockname()[1])
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def connect(network: RegionNetwork, region: str, port: int) -> socket.socket:
    with network.inside(region):
        return socket.create_connection(("127.0.0.1", port), timeout=30)


@pytest.mark.parametrize("region", ["r1", "r3"])
def test_a_reply_from_another_region_takes_a_round_trip_and_parts_stay_in_order(
    network: RegionNetwork, port: int, region: str
) -> None:
    with connect(network, region, port) as connection:
        network.delay_s = _DELAY_S
        begun_s = time.monotonic()
        connection.sendall(b"far")
        connection.sendall(b" away")
        found = connection.recv(8, socket.MSG_WAITALL)
    assert found == b"far away"
    assert time.monotonic() - begun_s >= 2 * _DELAY_S


def test_a_region_reaches_its_own_port_at_once(network: RegionNetwork, port: int) -> None:
    network.delay_s = 3_600
    with connect(network, "r2", port) as connection:
        connection.sendall(b"near")
        assert connection.recv(4, socket.MSG_WAITALL) == b"near"


def test_what_is_on_its_way_is_lost_with_the_port_and_the_next_connection_works(
    network: RegionNetwork, port: int
) -> None:
    with connect(network, "r1", port) as connection:
        connection.sendall(b"1")
        assert connection.recv(1) == b"1"
        network.delay_s = 3_600
        connection.sendall(b"2")
        network.lose(port)
        assert connection.recv(1) == b""
    network.delay_s = 0
    with connect(network, "r1", port) as connection:
        connection.sendall(b"3")
        assert connection.recv(1) == b"3"


def test_a_port_that_nobody_serves_ends_connections_to_it(network: RegionNetwork) -> None:
    closed = free_port()
    network.publish("r2", closed)
    with connect(network, "r1", closed) as connection:
        assert connection.recv(1) == b""
