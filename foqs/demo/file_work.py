"""The work on one file, done in a worker process: compress it, checksum it.

Always true: a file that cannot be processed gives a result that says why, never
an exception; memory does not grow with the file. Knows nothing of queues.
"""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import os
import signal
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PIECE_BYTES: Final = 1 << 20
COMPRESSION_LEVEL: Final = 1
"""The fastest: the run is to show the queue, and not how long compressing takes."""


@dataclass(slots=True, frozen=True)
class FileTask:
    """The payload of an item: its file, with the size and checksum that it had."""

    path: str
    size: int
    sha256: str


@dataclass(slots=True, frozen=True)
class FileResult:
    """The result of the work on a file. `error` is None if it was processed."""

    sha256: str
    compressed_bytes: int
    work_s: float
    error: str | None


def process_all(tasks: Sequence[FileTask]) -> list[FileResult]:
    """Return the results of the tasks, in order. This runs in a worker process."""
    return [process(task) for task in tasks]


def process(task: FileTask) -> FileResult:
    """Compress and checksum a file. Return the result, with an error if the file is not as its item says."""
    begun_s = time.perf_counter()
    digest = hashlib.sha256()
    compressor = zlib.compressobj(COMPRESSION_LEVEL)
    size = compressed = 0
    error = None
    try:
        with Path(task.path).open("rb") as file:
            while piece := file.read(PIECE_BYTES):
                digest.update(piece)
                size += len(piece)
                compressed += len(compressor.compress(piece))
        compressed += len(compressor.flush())
    except OSError as failure:
        error = failure.strerror or type(failure).__name__
    else:
        if size != task.size:
            error = f"{size:,} bytes, not the {task.size:,} that were enqueued"
        elif digest.hexdigest() != task.sha256:
            error = "the content does not match its checksum"
    return FileResult(digest.hexdigest(), compressed, time.perf_counter() - begun_s, error)


@contextlib.contextmanager
def worker_pool(count: int) -> Iterator[ProcessPoolExecutor]:
    """A pool of `count` running worker processes; none is left afterwards.

    They are spawned, not forked, so that they hold none of our sockets. Ctrl-C
    at a terminal goes to every process of the group: they are started with it
    blocked, as ending them is our task.
    """
    pool = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), initializer=_exit_with_parent)
    try:
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            for _ in range(count):
                pool.submit(os.getpid)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        yield pool
    finally:
        for child in multiprocessing.active_children():
            child.terminate()
        pool.shutdown(cancel_futures=True)


def _exit_with_parent() -> None:
    """Ends this process with its parent, even when that is killed."""
    parent = multiprocessing.parent_process()

    def follow() -> None:
        if parent is not None:
            parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
