"""A call of a task as the payload of an item has it.

Always true: the payload alone says which task runs with which arguments; reading it imports nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Any, Final

from django.utils.module_loading import import_string

from foqs_client.django.task_classes import Task, TaskResult

_TYPES: Final = {
    "id": str,
    "backend": str,
    "path": str,
    "queue": str,
    "priority": int,
    "run_after": str | None,
    "enqueued_at": str,
    "args": list,
    "kwargs": dict,
}


@dataclass(slots=True, frozen=True)
class TaskCall:
    """A call of a task.

    Attributes:
        path: the module and the name of its function.
        id: the id of its result, and of its row in the outbox.
        backend: the alias of its backend.
        run_after, enqueued_at: as ISO 8601 has them.
    """

    path: str
    args: list[Any]
    kwargs: dict[str, Any]
    id: str
    backend: str
    queue: str
    priority: int
    run_after: str | None
    enqueued_at: str

    def payload(self) -> bytes:
        """Return the call as JSON, in ASCII."""
        return json.dumps(asdict(self), separators=(",", ":"), allow_nan=False).encode()

    def enqueued_time(self) -> datetime:
        """Return when the task was enqueued."""
        return datetime.fromisoformat(self.enqueued_at)

    def task(self) -> Task:
        """Return the task, which is imported.

        Raises:
            ImportError: there is no such module or name in this program.
            ValueError: the name is no task.
            InvalidTask: the settings of this program do not allow it.
        """
        found = import_string(self.path)
        if not isinstance(found, Task):
            raise ValueError(f"{self.path} is no task; decorate it with @task")  # noqa: TRY004 - its type is not the caller's
        return found.using(
            priority=self.priority,
            queue_name=self.queue,
            run_after=None if self.run_after is None else datetime.fromisoformat(self.run_after),
            backend=self.backend,
        )


def check_arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Check for what Django lets pass, and the task would get as another value, or JSON does not have.

    Raises:
        TypeError: the key of a dict is no text.
        ValueError: a number is not finite.
    """
    _check_value(args, "args")
    _check_value(kwargs, "kwargs")


def _check_value(value: object, place: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{place} is {value}, which JSON does not have; send None or a text")
    if isinstance(value, Mapping):
        for key, each in value.items():
            if not isinstance(key, str):
                raise TypeError(f"{place} has the key {key!r}, which JSON would turn into a text; use texts as keys")
            _check_value(each, f"{place}[{key!r}]")
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for number, each in enumerate(value):
            _check_value(each, f"{place}[{number}]")


def call_of(result: TaskResult) -> TaskCall:
    """Return the call of a result that was just made."""
    task = result.task
    return TaskCall(
        id=result.id,
        backend=result.backend,
        path=task.module_path,
        queue=task.queue_name,
        priority=int(task.priority),
        run_after=None if task.run_after is None else task.run_after.isoformat(),
        enqueued_at=result.enqueued_at.isoformat(),
        args=result.args,
        kwargs=result.kwargs,
    )


def read_call(payload: bytes | str) -> TaskCall:
    """Return the call of a payload. Raises ValueError: it has none."""
    found = json.loads(payload)
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")  # noqa: TRY004 - as for other payloads
    values: dict[str, Any] = {}
    for each in fields(TaskCall):
        values[each.name] = value = found.get(each.name)
        if not isinstance(value, _TYPES[each.name]):
            raise ValueError(f"its {each.name} is {value!r}")  # noqa: TRY004
    return TaskCall(**values)
