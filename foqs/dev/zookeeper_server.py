"""A ZooKeeper server on this machine, alone or in an ensemble.

Always true: it listens on loopback only; its data outlives it where its folder
does. Knows nothing of what is kept in it.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from foqs.dev.server_process import ServerNotAvailable, ServerProcess, find_program, free_port

JARS: Final = Path("/usr/share/java")
"""Where the system's package installs ZooKeeper."""
_REQUIRED_JARS: Final = ("zookeeper.jar", "slf4j-log4j12.jar", "log4j-1.2.jar")
_MAIN_CLASS: Final = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
"""The program of the server. It runs a single server if the configuration names no others."""
_PROBE_S: Final = 2.0


class ZooKeeper(ServerProcess):
    """A ZooKeeper server, alone or in an ensemble.

    Args:
        port: the port; 0 is any free port.
        tick_ms: sessions end within one tick of their timeout.
        session_ms: the least and the greatest timeout of a session.
        quorum: the two ports of each server of an ensemble, by the server's number; empty for a single server.
        number: the number of this server.
    """

    name = "zookeeper"

    def __init__(
        self,
        folder: Path | None = None,
        port: int = 0,
        tick_ms: int = 500,
        session_ms: tuple[int, int] = (1_000, 120_000),
        quorum: Mapping[int, tuple[int, int]] = MappingProxyType({}),
        number: int = 1,
    ) -> None:
        super().__init__(folder)
        self.port = port or free_port()
        self.tick_ms = tick_ms
        self._session_ms = session_ms
        self._quorum = quorum
        self._number = number

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def set_up(self) -> None:
        self.start()

    def start(self) -> None:
        """Start the server with its data; return when it serves sessions."""
        self.start_process()
        self.wait_until_ready(self.is_ready)

    def start_process(self) -> None:
        """Start without waiting: a server of an ensemble serves when most of the others run.

        Raises ServerNotAvailable if Java or ZooKeeper is not installed.
        """
        java = find_program("java", "default-jre-headless")
        missing = [name for name in _REQUIRED_JARS if not (JARS / name).exists()]
        if missing:
            raise ServerNotAvailable(
                f"ZooKeeper is not installed ({JARS / missing[0]} is not there): apt-get install zookeeper"
            )
        options = {"dataDir": self.folder / "data", **self.settings()}
        if self._quorum:
            options |= {"initLimit": 100, "syncLimit": 20}
            options |= {
                f"server.{number}": f"127.0.0.1:{ports[0]}:{ports[1]}" for number, ports in self._quorum.items()
            }
            data = self.folder / "data"
            data.mkdir(exist_ok=True)
            (data / "myid").write_text(f"{self._number}\n")
        (self.folder / "zoo.cfg").write_text("".join(f"{name}={value}\n" for name, value in options.items()))
        (self.folder / "log4j.properties").write_text(_LOGGING_PROPERTIES)
        places = [str(self.folder), *(str(JARS / name) for name in _REQUIRED_JARS)]
        command = [
            java,
            "-Xmx256m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-cp",
            ":".join(places),
            _MAIN_CLASS,
        ]
        self.launch([*command, str(self.folder / "zoo.cfg")], lambda: True)

    def settings(self) -> dict[str, object]:
        """Return the lines of a single server's configuration that name no file."""
        return {
            "tickTime": self.tick_ms,
            "clientPort": self.port,
            "clientPortAddress": "127.0.0.1",
            "admin.enableServer": "false",
            "maxClientCnxns": 0,
            "minSessionTimeout": self._session_ms[0],
            "maxSessionTimeout": self._session_ms[1],
            "4lw.commands.whitelist": "srvr",
            "autopurge.snapRetainCount": 3,
            "autopurge.purgeInterval": 1,
        }

    def is_ready(self) -> bool:
        """Return whether it serves sessions: it refuses `srvr` while it starts."""
        return "Mode: " in self._status()

    def is_leader(self) -> bool:
        """Return whether it is the leader of an ensemble."""
        return "Mode: leader" in self._status()

    def _status(self) -> str:
        try:
            with socket.create_connection(("127.0.0.1", self.port), _PROBE_S) as probe:
                probe.sendall(b"srvr")
                said = b""
                while part := probe.recv(4_096):
                    said += part
        except OSError:
            return ""
        return said.decode(errors="replace")


_LOGGING_PROPERTIES: Final = """\
log4j.rootLogger=WARN, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d %-5p %c: %m%n
"""
