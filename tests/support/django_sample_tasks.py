"""Tasks of a Django project, which record that they ran."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from django.db import connections, transaction

from foqs_client.django.task_classes import task
from tests.support import django_project

assert django_project.QUEUES, "its import has configured Django"

calls: Final[list[Any]] = []
"""What tasks have done, in order. A test clears it."""


class Busy(Exception):
    """A mail server has no time."""


@task
def note(*values: Any, **named: Any) -> list[Any]:
    calls.append((values, named))
    return list(values)


@task()
def answer() -> int:
    return 42


@task
async def note_async(*values: Any) -> list[Any]:
    await asyncio.sleep(0)
    calls.append(values)
    return list(values)


@task(queue_name="mail", priority=10)
def refuse(text: str = "busy") -> None:
    calls.append(text)
    raise Busy(text)


@task(retries=1)
def refuse_twice() -> None:
    calls.append("refused")
    raise Busy("busy")


@task(takes_context=True)
def tell_attempt(context: Any) -> int:
    calls.append(context.task_result.id)
    return int(context.attempt)


@task(timeout_s=0.001)
async def never_end() -> None:
    calls.append("begun")
    await asyncio.Event().wait()


@task
async def wait_for_ever() -> None:
    calls.append("begun")
    await asyncio.Event().wait()


@task
def give_a_set() -> Any:
    return {1}


@task
def enqueue_another(left: int) -> None:
    calls.append(left)
    if left:
        enqueue_another.enqueue(left - 1)


NO_TASK: Final = "a text"


@task(backend="atomic")
def save_and_raise(raises: bool) -> None:
    note.enqueue("of the effects")
    if raises:
        raise Busy("busy")


@task(backend="atomic")
def save_and_roll_back() -> None:
    note.enqueue("of the effects")
    transaction.set_rollback(True)


lose_databases: Callable[[], object] = connections.close_all
"""What the next two tasks call. A test sets it."""


@task
def note_and_lose_the_databases() -> str:
    calls.append("noted")
    lose_databases()
    return "noted"


@task
def use_a_lost_database() -> None:
    calls.append("begun")
    lose_databases()
    connections["default"].ensure_connection()


@task
def leave_a_transaction_open() -> None:
    transaction.atomic().__enter__()
    note.enqueue("of the effects")


@task
def run_wrong_sql() -> None:
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT * FROM no_such_table")


@task
def leave(how: str) -> None:
    raise SystemExit(how) if how == "exit" else KeyboardInterrupt(how)
