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

from foqs.access.call_permissions import REQUIREMENTS, Requirement
from foqs.core.errors import NotImplementedYet
from foqs.queue.port import PendingCall
from foqs.rpc.auth_session import AuthSession
from foqs.rpc.messages import bytes_spec, unique_field_spec
from foqs.rpc.type_check import TypeCheck
from foqs_client.idl import Foqs

READ_ONLY_METHODS: Final = frozenset(
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
    def session(self) -> AuthSession | None:
        """The peer; None where the host asks nobody who he is."""
        ...

    def reply(self, to_struct: Callable[[_T], Any], value: _T, on_unsent: Callable[[], None] | None = None) -> None:
        """The call is done: `shape(value)` is its reply struct.

        `on_unsent` is called when the reply cannot be written at all, and not otherwise.
        """
        ...

    def fail(self, error: Exception) -> None:
        """The call failed as a whole; what is no FoqsError was foreseen by nobody."""
        ...

    def log_malformed(self, text: str) -> None:
        """A line for the log: the client sent bytes that no correct client sends."""
        ...


MethodHandler: TypeAlias = Callable[[Any, float, Caller], PendingCall | None]
"""(request, deadline on the loop's clock, caller): answers the caller, now or later, or raises FoqsError."""


@dataclass(slots=True, frozen=True)
class ServerMethod:
    """One method: its structs and its server."""

    name: str
    writes: bool
    handle: MethodHandler
    args_spec: list[Any]
    type_check: TypeCheck
    request_fields: frozenset[str]
    """The request's fields."""
    list_fields: tuple[str, ...]
    """The request's fields that are lists."""
    result_spec: list[Any]
    result_class: Any
    requirement: Requirement
    namespace_of: Callable[[Any], bytes | None]
    """What the request names as its namespace, whatever the call."""
    is_cacheable: bool
    """Whether a client sends the same request many times. Whoever serves it must not change it."""


class RpcService(Protocol):
    """What the server needs of whoever serves the calls."""

    @property
    def methods(self) -> Mapping[bytes, ServerMethod]: ...

    def timeout_s(self, request: Any) -> float:
        """How long the call may take. Raises FoqsError."""
        ...


def contract_methods(handlers: Mapping[str, MethodHandler]) -> dict[bytes, ServerMethod]:
    """Every method of the contract by name; `handlers` are those that something serves."""
    names = [name for name in vars(Foqs.Iface) if not name.startswith("_")]
    unknown = set(handlers) - set(names)
    if unknown:
        raise ValueError(f"not in the contract: {sorted(unknown)}")
    return {name.encode(): _server_method(name, handlers.get(name) or _not_implemented(name)) for name in names}


def task_handler(handle: Callable[[Any, float], Coroutine[Any, Any, Any]]) -> MethodHandler:
    """Serves by a coroutine function of (request, deadline) that returns the reply struct: a task for each call."""

    async def run(request: Any, deadline: float, caller: Caller) -> None:
        try:
            reply = await handle(request, deadline)
        except Exception as error:
            caller.fail(error)
        else:
            caller.reply(unchanged, reply)

    def start(request: Any, deadline: float, caller: Caller) -> PendingCall:
        return _PendingTask(asyncio.get_running_loop().create_task(run(request, deadline, caller)))

    return start


@dataclass(slots=True, frozen=True)
class _PendingTask:
    """A call that a task serves."""

    task: asyncio.Task[None]

    def abandon(self) -> None:
        self.task.cancel()


def unchanged(reply: Any) -> Any:
    """The shape of what is a reply struct already."""
    return reply


def _server_method(name: str, handler: MethodHandler) -> ServerMethod:
    args = getattr(Foqs, f"{name}_args")
    result = getattr(Foqs, f"{name}_result")
    spec = bytes_spec(args)
    request = args.thrift_spec[1][3][0]
    return ServerMethod(
        name=name,
        writes=name not in READ_ONLY_METHODS,
        handle=handler,
        args_spec=unique_field_spec(spec),
        type_check=TypeCheck(spec),
        request_fields=frozenset(field[2] for field in request.thrift_spec if field),
        list_fields=tuple(field[2] for field in request.thrift_spec if field and field[1] == TType.LIST),
        result_spec=[result, result.thrift_spec],
        result_class=result,
        requirement=REQUIREMENTS[name],
        namespace_of=_field_getter(REQUIREMENTS[name].namespace_field),
        is_cacheable=name == "dequeue",
    )


def _field_getter(path: str) -> Callable[[Any], bytes | None]:
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


def _not_implemented(name: str) -> MethodHandler:
    def serve(request: Any, deadline: float, caller: Caller) -> None:
        raise NotImplementedYet(f"{name} is not served by this version")

    return serve
