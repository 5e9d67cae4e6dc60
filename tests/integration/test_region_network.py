"""Data takes its time between the regions of a machine, and none within one."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from foqs.dev import region_network
from foqs.dev.region_network import RegionNetwork
from foqs.dev.server_process import ServerNotAvailable
from tests.support.poll import until
from tests.support.ports import free_port
from tests.support.region_networks import network

pytestmark = pytest.mark.process

__all__ = ["network"]

_DELAY_S = 0.05


@pytest.fixture
def open_longer() -> Iterator[ExitStack]:
    """Holds sockets until the network has ended, if it is requested before that."""
    with ExitStack() as stack:
        yield stack


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


def is_ended(connection: socket.socket) -> bool:
    """Wait until the other end has closed a connection, or its time is over. Return which."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:  # it had not read everything
        return True
    except TimeoutError:
        return False


def test_lost_port_drops_data_in_transit(network: RegionNetwork, port: int) -> None:
    with connect(network, "r1", port) as connection:
        connection.sendall(b"1")
        assert connection.recv(1) == b"1"
        network.delay_s = 3_600
        connection.sendall(b"2")
        network.lose(port)
        assert is_ended(connection)
    network.delay_s = 0
    with connect(network, "r1", port) as connection:
        connection.sendall(b"3")
        assert connection.recv(1) == b"3"


def test_network_ends_while_data_is_in_transit(open_longer: ExitStack, network: RegionNetwork) -> None:
    with network.inside("r2"):
        listener = open_longer.enter_context(socket.create_server(("127.0.0.1", free_port())))
    network.publish("r2", listener.getsockname()[1])
    connection = open_longer.enter_context(connect(network, "r1", listener.getsockname()[1]))
    open_longer.enter_context(listener.accept()[0])
    network.delay_s = 3_600
    connection.sendall(b"1")


def open_files() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


def test_lost_port_ends_connections_that_a_frozen_server_did_not_accept(network: RegionNetwork) -> None:
    with ExitStack() as stack:
        with network.inside("r2"):
            listener = stack.enter_context(socket.create_server(("127.0.0.1", free_port()), backlog=0))
        frozen = listener.getsockname()[1]
        network.publish("r2", frozen)
        # The queue has room for one.
        stack.enter_context(connect(network, "r2", frozen))
        before = open_files()
        with connect(network, "r1", frozen) as connection:
            # The far end is there, and cannot connect.
            until(lambda: open_files() == before + 3, "the proxy has accepted and connects")
            network.lose(frozen)
            assert is_ended(connection)
        until(lambda: open_files() == before, "no connection is left")


def test_sender_waits_while_its_receiver_stands_still(network: RegionNetwork, monkeypatch: pytest.MonkeyPatch) -> None:
    most = 1 << 20
    monkeypatch.setattr(region_network, "_ON_THE_WAY_BYTES_MAX", most)
    with ExitStack() as stack:
        with network.inside("r2"):
            listener = stack.enter_context(socket.create_server(("127.0.0.1", free_port())))
        network.publish("r2", listener.getsockname()[1])
        connection = stack.enter_context(connect(network, "r1", listener.getsockname()[1]))
        receiver = stack.enter_context(listener.accept()[0])
        connection.settimeout(1)
        sent = 0
        with pytest.raises(TimeoutError):
            while sent < 64 * most:
                sent += connection.send(b"x" * 65_536)
        connection.shutdown(socket.SHUT_WR)
        received = 0
        while data := receiver.recv(1 << 20):
            received += len(data)
        assert received == sent


def test_port_that_is_in_use_in_another_region_is_named(network: RegionNetwork) -> None:
    with socket.create_server(("127.0.0.1", free_port())) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ServerNotAvailable, match=f"port {port} of r2 cannot be reached from r1"):
            network.publish("r2", port)


def test_a_port_that_nobody_serves_ends_connections_to_it(network: RegionNetwork) -> None:
    closed = free_port()
    network.publish("r2", closed)
    with connect(network, "r1", closed) as connection:
        assert connection.recv(1) == b""
