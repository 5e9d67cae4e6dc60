"""A worker process: imports the handler, does one item after the other, and says what came of each.

Always true: it ends with its parent, however that ends; SIGTERM and Ctrl-C are
its parent's affair. Knows nothing of queues but the item in hand.

The messages, each way:

    ▶ ("job", Delivery)   ◀ ("ready", None) or ("failed", sentence), once
    ▶ ("lost",)           ◀ ("done", None or an exception)
                          ◀ ("extend", lease_ms)
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import threading
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection
from operator import attrgetter
from typing import Final

from foqs_client.consumer.job import Dead, Discard, Job, Remote, Retry
from foqs_client.consumer.runner import call_plain
from foqs_client.consumer.verdict import sentence
from foqs_client.types import Delivery

READY: Final = "ready"


@dataclass(slots=True, frozen=True)
class Reference:
    """A function by its module and its name there."""

    module: str
    name: str


def main(line: Connection, reference: Reference) -> None:
    """The process."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        handler = attrgetter(reference.name)(import_module(reference.module))
    except BaseException as error:
        line.send(("failed", f"{reference.module} cannot be imported: {type(error).__name__}: {error}"))
        return
    line.send((READY, None))
    deliveries: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
    current: list[Job] = []
    threading.Thread(target=_listen, args=(line, deliveries, current), daemon=True).start()
    while True:
        job = Job(deliveries.get(), lambda _, lease_ms: line.send(("extend", lease_ms)))
        current[:] = [job]
        raised: BaseException | None = None
        try:
            call_plain(handler, job)
        except BaseException as error:
            raised = _travelling(error)
        current.clear()
        line.send(("done", raised))


def _listen(line: Connection, deliveries: queue.SimpleQueue[Delivery], current: list[Job]) -> None:
    """What the parent says; its end is this process's."""
    while True:
        try:
            message = line.recv()
        except (EOFError, OSError):
            os._exit(1)
        if message[0] == "job":
            deliveries.put(message[1])
        else:
            for job in current:
                job.lost = True


def _travelling(error: BaseException) -> BaseException:
    """The exception as the parent is to see it: it may be of a type that only this process knows."""
    if type(error) in (Retry, Dead, Discard):
        with suppress(Exception):
            pickle.dumps(error)
            return error
    return Remote(sentence(error))
