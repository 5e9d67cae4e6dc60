"""The OPTIONS of a `FoqsBackend`, checked.

Always true: each value has its type and range; an unknown name is refused. Pure.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from foqs_client.client import Client
from foqs_client.django.task_classes import InvalidTaskBackend, Task
from foqs_client.outbox.new_rows import I32_MAX, PAYLOAD_BYTES_MAX, TIME_MS_MAX

TIMEOUT_S_MAX: Final = 30 * 86_400.0
_LIMITS: Final = ("retries", "timeout_s")
"""The options that a queue can have, too."""
_NUMBERS: Final[Mapping[str, tuple[float, float]]] = {
    "retries": (0, 1_000),
    "timeout_s": (0.001, TIMEOUT_S_MAX),
    "attempts_max": (1, 1_000),
    "lease_ms": (1, TIME_MS_MAX),
    "payload_bytes_max": (1, I32_MAX),
    "concurrency": (1, 10_000),
    "processes": (0, 1_000),
}
_TEXTS: Final = ("url", "database", "prefix")
_MAPPINGS: Final = ("client", "queues")
_FLAGS: Final = ("results", "notify", "atomic")
_CLIENT_ARGUMENTS: Final = tuple(inspect.signature(Client).parameters)[1:]
_MAY_BE_NONE: Final = ("timeout_s", "lease_ms")


@dataclass(slots=True, frozen=True)
class TaskLimits:
    """How often a task runs again after an exception, and how long a run may take; None: without an end."""

    retries: int
    timeout_s: float | None


@dataclass(slots=True, frozen=True)
class BackendOptions:
    """The options of a backend. Use `read_options`.

    Attributes:
        url: the addresses of the hosts.
        client: the other arguments of `Client`, such as `namespace` and `token_file`.
        database: the database of the outbox and of the results.
        prefix: the beginning of the topics. A queue's name follows it.
        results: record results in the database, which `get_result` reads.
        atomic: run each task in a transaction of the database, with its row of the inbox and its result.
        retries: how often a task runs again after an exception.
        timeout_s: how long a run may take. None: without an end.
        attempts_max: how many deliveries of a task may end without a result, because a worker died or lost its lease.
            Retries after exceptions are added to it.
        lease_ms: after this time without a worker, a task is delivered again. None: as the namespace says.
        payload_bytes_max: what the namespace allows.
        concurrency: how many tasks a worker runs at a time.
        processes: run tasks in this number of processes of the worker, in place of threads. 0: in threads.
        notify: on Postgres, wake the relay at each commit.
        queues: by name of a queue: its own `retries` and `timeout_s`.
    """

    url: str = "foqs://127.0.0.1:7411"
    client: Mapping[str, Any] = field(default_factory=dict)
    database: str = "default"
    prefix: str = "tasks."
    results: bool = False
    atomic: bool = False
    retries: int = 0
    timeout_s: float | None = None
    attempts_max: int = 5
    lease_ms: int | None = None
    payload_bytes_max: int = PAYLOAD_BYTES_MAX
    concurrency: int = 10
    processes: int = 0
    notify: bool = False
    queues: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def namespace(self) -> tuple[str, str]:
        """The addresses of the hosts, and the name of the namespace."""
        return self.url, self.client.get("namespace", "default")

    def limits_of(self, task: Task) -> TaskLimits:
        """Return the limits of a task: its own, else those of its queue, else those of the backend."""
        queue = self.queues.get(task.queue_name, {})
        retries, timeout_s = (
            own if (own := getattr(task, name, None)) is not None else queue.get(name, getattr(self, name))
            for name in _LIMITS
        )
        return TaskLimits(retries, timeout_s)


def read_options(alias: str, options: Mapping[str, Any]) -> BackendOptions:
    """Return the options of a backend.

    Raises:
        InvalidTaskBackend: one is unknown or wrong; the message names it.
    """
    known = [each.name for each in fields(BackendOptions)]
    _check(alias, options, "OPTIONS", known)
    found = BackendOptions(**options)
    _check_names(alias, found.client, "OPTIONS['client']", _CLIENT_ARGUMENTS)
    for queue, limits in found.queues.items():
        _check(alias, limits, f"OPTIONS['queues'][{queue!r}]", _LIMITS)
    return found


def check_limit(name: str, value: object) -> str | None:
    """Return what is wrong with a limit of a task; None: nothing."""
    return None if value is None else _fault(name, value)


def _check(alias: str, options: object, path: str, known: list[str] | tuple[str, ...]) -> None:
    place = _place(alias, path)
    if not isinstance(options, Mapping):
        raise InvalidTaskBackend(f"{place} is {options!r}; give a dict of options")
    _check_names(alias, options, path, known)
    for name, value in options.items():
        if value is None and name in _MAY_BE_NONE:
            continue
        fault = _fault(name, value)
        if fault is not None:
            raise InvalidTaskBackend(f"{place}: {name} {fault}")


def _check_names(alias: str, options: Iterable[str], path: str, known: Iterable[str]) -> None:
    for name in options:
        if name not in known:
            raise InvalidTaskBackend(f"{_place(alias, path)} has no option {name!r}; there are: {', '.join(known)}")


def _place(alias: str, path: str) -> str:
    return f"TASKS[{alias!r}][{path!r}]" if path == "OPTIONS" else f"TASKS[{alias!r}] {path}"


def _fault(name: str, value: object) -> str | None:
    if name in _NUMBERS:
        low, high = _NUMBERS[name]
        kinds = (int, float) if name == "timeout_s" else (int,)
        if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= high:
            return f"is {value!r}; give a number from {low:g} to {high:g}"
    elif name in _FLAGS and not isinstance(value, bool):
        return f"is {value!r}; give True or False"
    elif name in _TEXTS and not isinstance(value, str):
        return f"is {value!r}; give a text"
    elif name in _MAPPINGS and not isinstance(value, Mapping):
        return f"is {value!r}; give a dict"
    return None
