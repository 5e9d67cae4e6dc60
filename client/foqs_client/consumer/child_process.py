"""A worker process: imports the handler, runs it for one item after the other, and reports each result.

Always true: it ends when its parent ends, for any reason, with all processes of its
group, which are those that the handler has started. It does nothing on SIGTERM, SIGHUP
and Ctrl-C; its parent handles them. Knows nothing of queues except its current item.

The messages in each direction:

    ▶ ("job", Delivery)       ◀ ("ready", None) or ("failed", sentence), once
    ▶ ("lost", id, token)     ◀ ("done", (None or an exception, the items that follow))
                              ◀ ("extend", lease_ms)
"""

from __future__ import annotations

import multiprocessing
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
from foqs_client.consumer.job import Dead, Discard, Job, NotBegun, RemoteError, Retry
from foqs_client.safe_text import safe_text

READY: Final = "ready"
_PARENT_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""The signals that the parent handles."""


@dataclass(slots=True, frozen=True)
class FunctionReference:
    """The module and the name of a function."""

    module: str
    name: str


def main(connection: Connection, reference: FunctionReference) -> None:
    """Run the worker process."""
    os.setpgid(0, 0)
    for number in _PARENT_SIGNALS:
        # Not SIG_IGN, which programs that the handler starts would inherit.
        signal.signal(number, _do_nothing)
    _unblock()
    # Signals are blocked during a fork, so that one that arrives early ends the forked process after `_leave`.
    worker_id = os.getpid()
    os.register_at_fork(before=_block, after_in_parent=_unblock, after_in_child=lambda: _leave(connection, worker_id))
    # A handler may start processes of `multiprocessing`, which a daemonic process may not.
    multiprocessing.current_process().daemon = False
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
        send("done", (raised, job.then))


def _listen(connection: Connection, jobs: queue.SimpleQueue[Job], send: Callable[[str, object], None]) -> None:
    """Read the parent's messages. Exit when the parent ends."""
    job: Job | None = None
    while True:
        try:
            message = connection.recv()
        except (EOFError, OSError):
            os.killpg(os.getpgrp(), signal.SIGKILL)
        if message[0] == "job":
            job = Job(message[1], lambda _, lease_ms: send("extend", lease_ms))
            jobs.put(job)
        elif job is not None and message[1:] == (job._delivery.id, job._delivery.token):  # else that job has ended
            job.lost = True


def _leave(connection: Connection, worker_id: int) -> None:
    """Make a process that the handler has forked one of its own: it has no parent to talk to, and ends by signals.

    A process that it forks in turn keeps the handlers of signals that it has set.
    """
    if os.getppid() == worker_id:
        connection.close()
        for number in _PARENT_SIGNALS:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    _unblock()


def _block() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, _PARENT_SIGNALS)


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PARENT_SIGNALS)


def _do_nothing(number: int, frame: object) -> None:
    """Take a signal and do nothing."""


def _portable_exception(error: BaseException) -> BaseException:
    """Return the exception with plain values only: the parent may not have the types of this process."""
    if isinstance(error, Discard):
        return Discard()
    try:
        if isinstance(error, Dead):
            return Dead(error.reason)
        if isinstance(error, NotBegun):
            return NotBegun(safe_text(error))
        if isinstance(error, Retry):
            return Retry(error.delay_ms, error.metadata)
    except Exception as unusable:
        error = unusable
    return RemoteError(describe_error(error))
