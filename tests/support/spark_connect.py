"""A server of Spark Connect on this machine, as a real process with a Python of its own.

Always true: it is ended by its process id. Needs a Java.
"""

from __future__ import annotations

import socket
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from foqs.dev.server_process import ServerProcess
from tests.support.ports import free_port
from tests.support.spark_cluster import JAVA_OPTIONS, ROOT, SPARK_HOME, machine_variables, make_environment

_SERVER: Final = "org.apache.spark.sql.connect.service.SparkConnectServer"
PACKAGES: Final = ("foqs_client", "foqs_contract", "pyspark_foqs")
"""The packages that a job needs."""
_PROBE_S: Final = 5.0


class ConnectServer(ServerProcess):
    """A server with two task slots.

    Args:
        folder: for its log, its scratch files and its Python.
        packages: the packages of this source tree that its Python has.

    Attributes:
        port: its port on 127.0.0.1.
    """

    name = "spark-connect"

    def __init__(self, folder: Path, packages: Sequence[str] = ()) -> None:
        super().__init__(folder)
        self.port = free_port()
        self._packages = packages

    def set_up(self) -> None:
        settings = {
            "spark.master": "local[2]",
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(self.port),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": JAVA_OPTIONS,
            "spark.local.dir": str(self.folder / "local"),
            "spark.sql.warehouse.dir": str(self.folder / "warehouse"),
            "spark.ui.enabled": "false",
        }
        variables = {
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": str(make_environment(self.folder, self._packages)),
        }
        arguments = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
        command = ["bash", str(SPARK_HOME / "bin" / "spark-submit"), "--class", _SERVER, *arguments, "spark-internal"]
        self.launch(command, self._is_ready, cwd=self.folder, env=machine_variables() | variables)

    def _is_ready(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), _PROBE_S):
                return True
        except OSError:
            return False


def zip_packages(file: Path) -> None:
    """Write PACKAGES into a zip file, as they are in the wheel of foqs."""
    with zipfile.ZipFile(file, "w") as archive:
        for package in PACKAGES:
            for source in sorted((ROOT / "client" / package).rglob("*.py")):
                archive.write(source, source.relative_to(ROOT / "client"))
