"""A worker process: imports the handler, does one item after the other, and says what came of each.

Always true: it ends with its parent, however that ends; SIGTERM and Ctrl-C are
its parent's affair. Knows nothing of queues but the item in hand.

The messages, each way:

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
    """A function by its module and its name there."""

    module: str
    name: str


def main(connection: Connection, reference: FunctionReference) -> None:
    """The process."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        handler = attrgetter(reference.name)(import_module(reference.module))
    except BaseException as error:
        connection.send(("failed", f"{reference.module} cannot be imported: {type(error).__name__}: {error}"))
        return
    connection.send((READY, None))
    sending = threading.Lock()

    def send(what: str, value: object) -> None:
        with sending:  # a handler may have threads of its own, which extend the lease
            connection.send((what, value))

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
    """What the parent says; its end is this process's."""
    job: Job | None = None
    while True:
        try:
            message = connection.recv()
        except (EOFError, OSError):
            os._exit(1)
        if message[0] == "job":
            job = Job(message[1], lambda _, lease_ms: send("extend", lease_ms))
            jobs.put(job)
        elif job is not None and message[1:] == (job._delivery.id, job._delivery.token):  # else it has ended meanwhile
            job.lost = True


def _portable_exception(error: BaseException) -> BaseException:
    """The exception as the parent is to see it: of plain values only, as it may not have the types of this process."""
    if isinstance(error, Discard):
        return Discard()
    try:
        if isinstance(error, Dead):
            return Dead(str(error.reason or ""))
        if isinstance(error, Retry):
            delay_ms = None if error.delay_ms is None else int(error.delay_ms)
            return Retry(delay_ms, None if error.metadata is None else bytes(memoryview(error.metadata)))
    except (TypeError, ValueError, OverflowError):
        pass  # it holds what no call could carry
    return RemoteError(describe_error(error))
