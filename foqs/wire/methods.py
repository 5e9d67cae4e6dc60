"""The methods of the contract, and what serves them.

Holds the shape of one method, and what it is given to answer by. Always true:
every method of service Foqs has an entry; one that nothing serves answers
NOT_IMPLEMENTED. Knows nothing of connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from thrift.Thrift import TType

from foqs.access.rules import NEEDS, Need
from foqs.core.errors import NotImplementedYet
from foqs.service.api import Pending
from foqs.wire.message import once_spec, raw_spec
from foqs.wire.strict import TypeCheck
from foqs.wire.visitor import Visitor
from foqs_client.idl import Foqs

READ_ONLY: Final = frozenset(
    (
        "authenticate",
        "getActiveTopics",
        "peek",
        "getItem",
        "explain",
        "countItems",
        "listDead",
        "getNamespace",
        "listNamespaces",
        "getUsage",
        "listGrants",
        "exportConfig",
        "listShards",
        "listHosts",
        "getRouting",
        "exchange",
    )
)
"""What cannot have written when it ends unanswered."""


_T = TypeVar("_T")


class Caller(Protocol):
    """Who waits for the answer of one call. Only the first answer, or failure, is told."""

    @property
    def visitor(self) -> Visitor | None:
        """The peer; None where the host asks nobody who he is."""
        ...

    def answer(self, shape: Callable[[_T], Any], value: _T, give_back: Callable[[], None] | None = None) -> None:
        """The call is done: `shape(value)` is its reply struct.

        `give_back` is called when the reply cannot be written at all, and not otherwise.
        """
        ...

    def fail(self, error: Exception) -> None:
        """The call failed as a whole; what is no FoqsError was foreseen by nobody."""
        ...

    def complain(self, text: str) -> None:
        """A line for the log: the client sent bytes that no correct client sends."""
        ...


Serve: TypeAlias = Callable[[Any, float, Caller], Pending | None]
"""(request, deadline on the loop's clock, caller): answers the caller, now or later, or raises FoqsError."""


@dataclass(slots=True, frozen=True)
class Method:
    """One method: its structs and its server."""

    name: str
    writes: bool
    serve: Serve
    args: list[Any]
    check: TypeCheck
    fields: frozenset[str]
    """The request's fields."""
    lists: tuple[str, ...]
    """The request's fields that are lists."""
    result: list[Any]
    result_class: Any
    need: Need
    namespace_of: Callable[[Any], bytes | None]
    """What the request names as its namespace, whatever the call."""
    repeats: bool
    """Whether a client sends the same request many times. Whoever serves it must not change it."""


class Calls(Protocol):
    """What the server needs of whoever serves the calls."""

    @property
    def methods(self) -> Mapping[bytes, Method]: ...

    def timeout_s(self, request: Any) -> float:
        """How long the call may take. Raises FoqsError."""
        ...


def contract(served: Mapping[str, Serve]) -> dict[bytes, Method]:
    """Every method of the contract by name; `served` are those that something serves."""
    names = [name for name in vars(Foqs.Iface) if not name.startswith("_")]
    unknown = set(served) - set(names)
    if unknown:
        raise ValueError(f"not in the contract: {sorted(unknown)}")
    return {name.encode(): _method(name, served.get(name) or _unserved(name)) for name in names}


def in_task(serve: Callable[[Any, float], Coroutine[Any, Any, Any]]) -> Serve:
    """Serves by a coroutine function of (request, deadline) that returns the reply struct: a task for each call."""

    async def run(request: Any, deadline: float, caller: Caller) -> None:
        try:
            reply = await serve(request, deadline)
        except Exception as error:
            caller.fail(error)
        else:
            caller.answer(as_it_is, reply)

    def start(request: Any, deadline: float, caller: Caller) -> Pending:
        return _Task(asyncio.get_running_loop().create_task(run(request, deadline, caller)))

    return start


@dataclass(slots=True, frozen=True)
class _Task:
    """A call that a task serves."""

    task: asyncio.Task[None]

    def abandon(self) -> None:
        self.task.cancel()


def as_it_is(reply: Any) -> Any:
    """The shape of what is a reply struct already."""
    return reply


def _method(name: str, serve: Serve) -> Method:
    args = getattr(Foqs, f"{name}_args")
    result = getattr(Foqs, f"{name}_result")
    spec = raw_spec(args)
    request = args.thrift_spec[1][3][0]
    return Method(
        name=name,
        writes=name not in READ_ONLY,
        serve=serve,
        args=once_spec(spec),
        check=TypeCheck(spec),
        fields=frozenset(field[2] for field in request.thrift_spec if field),
        lists=tuple(field[2] for field in request.thrift_spec if field and field[1] == TType.LIST),
        result=[result, result.thrift_spec],
        result_class=result,
        need=NEEDS[name],
        namespace_of=_reader(NEEDS[name].namespace),
        repeats=name == "dequeue",
    )


def _reader(path: str) -> Callable[[Any], bytes | None]:
    """Reads the field at a dotted path of a request; None where it, or what it is in, is missing."""
    read: Callable[[Any], bytes | None] = attrgetter(path)
    if "." not in path:
        return read

    def read_inner(request: Any) -> bytes | None:
        try:
            return read(request)
        except AttributeError:
            return None

    return read_inner


def _unserved(name: str) -> Serve:
    def serve(request: Any, deadline: float, caller: Caller) -> None:
        raise NotImplementedYet(f"{name} is not served by this version")

    return serve
