"""A worker process: imports the handler, runs it for one item after the other, and reports each result.

Always true: it ends when its parent ends, for any reason. It ignores SIGTERM and
Ctrl-C; its parent handles them. Knows nothing of queues except its current item.

The messages in each direction:

    ▶ ("job", Delivery)       ◀ ("ready", None) or ("failed", sentence), once
    ▶ ("lost", id, token)     ◀ ("done", None or an exception)
                              ◀ ("extend", lease_ms)
"""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection
from operator import attrgetter
from typing import Final

from foqs_client.consumer.handler_outcome import describe_error
from foqs_client.consumer.handler_runners import call_sync
from foqs_client.consumer.job import Dead, Discard, Job, RemoteError, Retry

READY: Final = "ready"


@dataclass(slots=True, frozen=True)
class FunctionReference:
    """The module and the name of a function."""

    module: str
    name: str


def main(connection: Connection, reference: FunctionReference) -> None:
    """Run the worker process."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        handler = attrgetter(reference.name)(import_module(reference.module))
    except BaseException as error:
        connection.send(("failed", f"{reference.module} cannot be imported: {describe_error(error)}"))
        return
    connection.send((READY, None))
    send_lock = threading.Lock()

    def send(kind: str, value: object) -> None:
        with send_lock:  # threads of the handler may extend the lease at the same time
            connection.send((kind, value))

    jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(connection, jobs, send), daemon=True).start()
    while True:
        job = jobs.get()
        raised: BaseException | None = None
        try:
            call_sync(handler, job)
        except BaseException as error:
            raised = _portable_exception(error)
        send("done", raised)


def _listen(connection: Connection, jobs: queue.SimpleQueue[Job], send: Callable[[str, object], None]) -> None:
    """Read the parent's messages. Exit when the parent ends."""
    job: Job | None = None
    while True:
        try:
            message = connection.recv()
        except (EOFError, OSError):
            os._exit(1)
        if message[0] == "job":
            job = Job(message[1], lambda _, lease_ms: send("extend", lease_ms))
            jobs.put(job)
        elif job is not None and message[1:] == (job._delivery.id, job._delivery.token):  # else that job has ended
            job.lost = True


def _portable_exception(error: BaseException) -> BaseException:
    """Return the exception with plain values only: the parent may not have the types of this process."""
    if isinstance(error, Discard):
        return Discard()
    try:
        if isinstance(error, Dead):
            return Dead(error.reason)
        if isinstance(error, Retry):
            return Retry(error.delay_ms, error.metadata)
    except Exception as unusable:
        error = unusable
    return RemoteError(describe_error(error))
