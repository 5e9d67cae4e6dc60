"""Spark's standalone cluster on this machine, as real processes: a master and workers.

Always true: each worker has an address of its own, because Spark starts a speculative copy
of a task only on another host. The executors have none of this process's variables, so a
task imports only what was shipped or named to it. An executor ends with its worker, and a
worker is ended by its process id. Needs a Java.
"""

from __future__ import annotations

import http.client
import json
import os
import shlex
import shutil
import signal
import sysconfig
import tarfile
import urllib.error
import urllib.request
import venv
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pyspark

from foqs.dev.server_process import ServerProcess
from tests.support.descendants import descendants
from tests.support.freezing import freeze, thaw
from tests.support.ports import free_port

ROOT: Final = Path(__file__).parents[2]
SPARK_HOME: Final = Path(pyspark.__file__).parent
CORES: Final = 1
"""The cores of a worker."""
_MASTER: Final = "org.apache.spark.deploy.master.Master"
_WORKER: Final = "org.apache.spark.deploy.worker.Worker"
_EXECUTOR: Final = "CoarseGrainedExecutorBackend"
JAVA_OPTIONS: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Of a short life: less work for the compiler and the garbage collector."""
_DAEMON_OPTIONS: Final = f"{JAVA_OPTIONS} -Dspark.master.rest.enabled=false"
_PROBE_S: Final = 5.0


class SparkCluster:
    """A master and workers, as a context manager.

    Args:
        folder: for their logs, and the folders of executors.
        workers: the number of workers.

    Attributes:
        url: the address for `spark.master`.
    """

    def __init__(self, folder: Path, workers: int = 2) -> None:
        port, self._web_port = free_port(), free_port()
        self.url = f"spark://127.0.0.1:{port}"
        self.addresses = [f"127.0.0.{number}" for number in range(2, 2 + workers)]
        ports = ["--port", str(port), "--webui-port", str(self._web_port)]
        self._master = _SparkDaemon(
            folder / "master",
            "127.0.0.1",
            [_MASTER, "--host", "127.0.0.1", *ports],
            lambda: self._registered() is not None,
        )
        self._workers = [self._worker(folder / f"worker-{address}", address) for address in self.addresses]

    def _worker(self, folder: Path, address: str) -> _SparkDaemon:
        place = ["--host", address, "--port", str(free_port()), "--webui-port", str(free_port())]
        room = ["--cores", str(CORES), "--memory", "1g", "--work-dir", str(folder / "work")]
        return _SparkDaemon(
            folder, address, [_WORKER, *place, *room, self.url], lambda: address in (self._registered() or ())
        )

    @property
    def settings(self) -> dict[str, str]:
        """The settings of a driver: its tasks begin when there is an executor on each worker."""
        return {
            "spark.master": self.url,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": JAVA_OPTIONS,
            "spark.cores.max": str(CORES * len(self._workers)),
            "spark.default.parallelism": "4",
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "600s",
            "spark.ui.enabled": "false",
        }

    def executors(self) -> list[int]:
        """Return the process ids of the executors, by worker."""
        return [
            pid for worker in self._workers for pid, command in descendants(worker.pid).items() if _EXECUTOR in command
        ]

    def executor_of(self, pid: int) -> int:
        """Return the process id of the executor that has started a process."""
        [executor] = [each for each in self.executors() if pid in descendants(each)]
        return executor

    def kill_executor(self) -> None:
        """End an executor as a crash would. Its worker starts another one."""
        os.kill(self.executors()[0], signal.SIGKILL)

    def _registered(self) -> set[str] | None:
        """Return the addresses of the workers that the master knows; None while it accepts none."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._web_port}/json/", timeout=_PROBE_S) as reply:
                return registered_workers(reply.read())
        except urllib.error.HTTPError as error:
            error.close()
            return None
        except (OSError, http.client.HTTPException):
            return None

    def __enter__(self) -> Self:
        try:
            self._master.set_up()
            with ThreadPoolExecutor() as pool:
                for started in [pool.submit(worker.set_up) for worker in self._workers]:
                    started.result()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the workers with their executors, and the master."""
        for daemon in (*self._workers, self._master):
            daemon.send_signal(signal.SIGTERM)
        for daemon in (*self._workers, self._master):
            daemon.close()


def registered_workers(page: bytes) -> set[str] | None:
    """Return the addresses of the workers that a page of the master names; None if it accepts none yet.

    A master that starts serves its page for browsers under every path, before it serves the one in JSON.
    """
    try:
        found = json.loads(page)
    except ValueError:
        return None
    if found["status"] != "ALIVE":
        return None
    return {worker["host"] for worker in found["workers"] if worker["state"] == "ALIVE"}


class _SparkDaemon(ServerProcess):
    """A master or a worker.

    Args:
        address: its address.
        arguments: its class and what follows.
        is_ready: returns whether it serves.
    """

    name = "spark"

    def __init__(self, folder: Path, address: str, arguments: Sequence[str], is_ready: Callable[[], bool]) -> None:
        super().__init__(folder)
        self._address = address
        self._arguments = list(arguments)
        self._is_ready = is_ready

    def set_up(self) -> None:
        variables = {
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": self._address,
            "SPARK_LOCAL_DIRS": str(self.folder / "local"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": _DAEMON_OPTIONS,
        }
        command = ["bash", str(SPARK_HOME / "bin" / "spark-class"), *self._arguments]
        self.launch(command, self._is_ready, cwd=self.folder, env=machine_variables() | variables)


def machine_variables() -> dict[str, str]:
    """Return the variables of a machine on which nothing of this source tree is."""
    return {name: os.environ[name] for name in ("HOME", "LANG", "PATH", "JAVA_HOME") if name in os.environ}


def driver_variables(settings: Mapping[str, str], python: str) -> dict[str, str]:
    """Return the variables of a driver that starts on such a machine.

    Args:
        settings: of Spark.
        python: the Python of the tasks.
    """
    arguments = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    return machine_variables() | {
        "PYSPARK_PYTHON": python,
        "PYSPARK_SUBMIT_ARGS": shlex.join([*arguments, "pyspark-shell"]),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def make_environment(folder: Path, packages: Sequence[str]) -> Path:
    """Make a virtual environment `folder`/environment, and its archive beside it. Return its Python.

    Its other packages are those of this environment, in their place, so that the archive is small.

    Args:
        packages: the packages of this source tree that it has.
    """
    home = folder / "environment"
    venv.create(home, symlinks=True)
    [site] = (home / "lib").glob("python3.*/site-packages")
    for name in packages:
        shutil.copytree(ROOT / "client" / name, site / name, ignore=shutil.ignore_patterns("__pycache__"))
    # Python does not read the .pth files of that folder, so the foqs of this environment is not added.
    (site / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    with tarfile.open(folder / "environment.tar.gz", "w:gz", compresslevel=1) as archive:
        archive.add(home, arcname=".")
    return home / "bin" / "python"


def freeze_executor(executor: int) -> list[int]:
    """Stop an executor and the Python of its tasks where they are. Return their process ids."""
    freeze(executor)
    found = [executor, *descendants(executor)]
    for pid in found[1:]:
        freeze(pid)
    return found


def thaw_executor(pids: Sequence[int]) -> None:
    """Let them go on."""
    for pid in reversed(pids):
        thaw(pid)
