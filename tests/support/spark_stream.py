"""A stream from a folder of text files into a topic, as a program: `python -m tests.support.spark_stream JSON`.

Each file is a batch of one partition, unless the settings divide it. The payload is a
line. A test starts it as a process, so that it can be killed at any moment.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any, Final

import pandas as pd
from pyspark import TaskContext

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ROOT: Final = Path(__file__).parents[2]
_POLL_S: Final = 0.05


def write_files(folder: Path, files: int, rows: int, line_bytes: int = 80) -> None:
    """Write numbered lines into files, in order."""
    folder.mkdir()
    for file in range(files):
        path = folder / f"{file:05d}.txt"
        path.write_text(
            "".join(
                f"{number:08d}".ljust(line_bytes - 1, ".") + "\n" for number in range(file * rows, (file + 1) * rows)
            )
        )
        os.utime(path, (1_000_000_000 + file, 1_000_000_000 + file))


def start_stream(
    session: SparkSession,
    folder: Path,
    checkpoint: Path,
    options: Mapping[str, str],
    *,
    pause_batch: int | None = None,
    pause_file: str = "",
) -> StreamingQuery:
    """Start a query that ends when it has read all files.

    Args:
        session: the Spark session.
        folder: the files.
        checkpoint: the folder of the checkpoint.
        options: of the sink.
        pause_batch: in this batch, a task stops after half of its rows and writes `pause_file`.
        pause_file: the path of a file. If it exists, nothing stops.
    """
    frame = session.readStream.schema("value string").option("maxFilesPerTrigger", 1).text(str(folder))
    frame = frame.selectExpr("value AS payload")
    if pause_batch is not None:

        def pause(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
            context = TaskContext.get()
            assert context is not None
            if context.getLocalProperty("streaming.sql.batchId") != str(pause_batch) or os.path.exists(pause_file):  # noqa: PTH110
                yield from frames
                return
            rows = pd.concat(frames)
            yield rows[: len(rows) // 2]
            yield rows[len(rows) // 2 :][:0]
            Path(pause_file).touch()
            while True:
                time.sleep(_POLL_S)  # until the process is killed

        frame = frame.mapInPandas(pause, "payload string")
    writer = frame.writeStream.format("foqs").option("checkpointLocation", str(checkpoint))
    return writer.options(**dict(options)).trigger(availableNow=True).start()


def batch_in_progress(checkpoint: Path) -> int | None:
    """Return the batch that has offsets and no commit; None if there is none."""
    begun, done = (_batches(checkpoint / name) for name in ("offsets", "commits"))
    return max(begun - done, default=None)


def _batches(folder: Path) -> set[int]:
    return {int(file.name) for file in folder.iterdir() if file.name.isdigit()} if folder.exists() else set()


class DriverProcess:
    """A program that starts a Spark, as a process.

    Args:
        command: the program and its arguments.
        log: its output.
        how: of its start: its folder and its variables.
    """

    def __init__(self, command: Sequence[str], log: Path, **how: Any) -> None:
        self._log = log
        with log.open("ab") as output:
            self._process: subprocess.Popen[bytes] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, **how
            )

    @property
    def log(self) -> str:
        """The end of its output, without the frames of Java, which hide what is wrong."""
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join(line for line in lines if not line.startswith("\tat "))[-4_000:]

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """Kill the driver, with its Java and the Python of its tasks."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def wait(self, timeout_s: float) -> None:
        """Wait for the end. Raise AssertionError with the log if it failed."""
        assert self._process.wait(timeout_s) == 0, self.log


@contextmanager
def driver_process(command: Sequence[str], log: Path, **how: Any) -> Iterator[DriverProcess]:
    """Yield a running program, which is killed in the end."""
    process = DriverProcess(command, log, **how)
    try:
        yield process
    finally:
        if process.is_running:
            process.kill()


@contextmanager
def stream_process(
    job: Mapping[str, Any], log: Path, module: str = "tests.support.spark_stream"
) -> Iterator[DriverProcess]:
    """Yield a running stream, whose `main` reads the job."""
    with driver_process([sys.executable, "-m", module, json.dumps(job)], log, cwd=ROOT) as process:
        yield process


def main() -> None:
    from perf.lib.spark import spark_session

    job = json.loads(sys.argv[1])
    with ExitStack() as stack:
        # A killed session leaves its folder.
        scratch = Path(mkdtemp(prefix="session-", dir=job["scratch"]))
        session = stack.enter_context(spark_session(scratch, job.get("settings", {})))
        query = start_stream(
            session,
            Path(job["folder"]),
            Path(job["checkpoint"]),
            job["options"],
            pause_batch=job.get("pause_batch"),
            pause_file=job.get("pause_file", ""),
        )
        query.awaitTermination()


if __name__ == "__main__":
    main()
