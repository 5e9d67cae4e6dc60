"""The methods of the Thrift contract and their handlers.

Holds the description of a method, and the `Caller` by which a handler replies.
Always true: every method of service Foqs has an entry; a method without a
handler fails as NOT_IMPLEMENTED. Knows nothing of connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from thrift.Thrift import TType

from foqs.queue.port import PendingCall
from foqs.rpc import codec, request_bytes
from foqs.rpc.messages import bytes_spec, encode_struct, unique_field_spec
from foqs.rpc.type_check import TypeCheck
from foqs_contract.call_table import CallRow
from foqs_contract.errors import NotImplementedYet
from foqs_contract.method_table import METHODS, MethodDescription

_T = TypeVar("_T")


class CallerSession(Protocol):
    """The auth session of a call's peer, as handlers need it."""

    @property
    def principal_name(self) -> str | None:
        """The name of the peer's principal; None if it has none."""
        ...

    @property
    def is_administrator(self) -> bool:
        """Whether the peer is an administrator, as other hosts of the tier are."""
        ...

    def authenticate(self, token: bytes | None, caller: Caller) -> PendingCall | None:
        """Reply with the token's principal; without a token, with the current principal. Raises Unauthenticated."""
        ...


class Caller(Protocol):
    """The receiver of one call's reply. Only the first reply or failure is sent."""

    @property
    def session(self) -> CallerSession | None:
        """The peer's auth session; None if the host does not authenticate."""
        ...

    @property
    def peer(self) -> str:
        """Where the call comes from: an address, or the part of this host that makes it."""
        ...

    def reply(self, to_struct: Callable[[_T], Any], value: _T, on_unsent: Callable[[], None] | None = None) -> None:
        """Reply to the call with the struct `to_struct(value)`.

        `on_unsent` is called if, and only if, no part of the reply can be written.
        """
        ...

    def fail(self, error: Exception) -> None:
        """Fail the whole call; an error that is no FoqsError is a bug."""
        ...

    def log_malformed(self, text: str) -> None:
        """Log that the client sent bytes that no correct client sends."""
        ...


MethodHandler: TypeAlias = Callable[[Any, float, Caller], PendingCall | None]
"""(request, deadline on the loop's clock, caller): replies to the caller now or later, or raises FoqsError."""


OnDenied: TypeAlias = Callable[[Any, CallerSession, str], None]
"""(request, session of the peer, peer)"""


@dataclass(slots=True, frozen=True)
class ServerMethod:
    """One method: its row, its structs and its handler."""

    row: CallRow
    handle: MethodHandler
    args_spec: list[Any]
    type_check: TypeCheck
    request_fields: frozenset[str]
    list_fields: tuple[str, ...]
    """The request's fields that are lists."""
    result_spec: list[Any]
    result_class: Any
    read_request: Callable[[bytes, int, int, int], Any] | None
    """Reads large requests of the usual form: (message, start of the arguments, longest string, most entries)."""
    encode_reply: Callable[[bool, Any], bytes]
    """Returns the bytes of the result of a successful call: (is_compact, reply struct)."""
    namespace_of: Callable[[Any], bytes | None]
    """Reads the namespace that a request names."""
    on_denied: OnDenied | None = None
    """Called for a call that its principal may not make."""


class RpcService(Protocol):
    """The handlers of all methods, as the server needs them."""

    @property
    def methods(self) -> Mapping[bytes, ServerMethod]: ...

    def timeout_s(self, request: Any) -> float:
        """Return how long the call may take. Raises FoqsError."""
        ...


def contract_methods(handlers: Mapping[str, MethodHandler]) -> dict[bytes, ServerMethod]:
    """Return every method of the contract by name; a method without one of these handlers fails."""
    unknown = set(handlers) - set(METHODS)
    if unknown:
        raise ValueError(f"not in the contract: {sorted(unknown)}")
    return {
        name.encode(): _server_method(described, handlers.get(name) or _not_implemented(name))
        for name, described in METHODS.items()
    }


def task_handler(handle: Callable[[Any, float], Coroutine[Any, Any, Any]]) -> MethodHandler:
    """Return a handler that runs a task per call; `handle(request, deadline)` returns the reply struct."""
    return caller_task_handler(lambda request, deadline, caller: handle(request, deadline))


def caller_task_handler(handle: Callable[[Any, float, Caller], Coroutine[Any, Any, Any]]) -> MethodHandler:
    """Return a handler as `task_handler` does; `handle` also gets the caller, whose reply it must not send."""

    async def run(request: Any, deadline: float, caller: Caller) -> None:
        try:
            reply = await handle(request, deadline, caller)
        except Exception as error:
            caller.fail(error)
        else:
            caller.reply(unchanged, reply)

    def start(request: Any, deadline: float, caller: Caller) -> PendingCall:
        return _PendingTask(asyncio.get_running_loop().create_task(run(request, deadline, caller)))

    return start


@dataclass(slots=True, frozen=True)
class _PendingTask:
    """A pending call that is served by a task."""

    task: asyncio.Task[None]

    def abandon(self) -> None:
        self.task.cancel()


def unchanged(reply: Any) -> Any:
    """Return the argument: a `to_struct` for values that are reply structs already."""
    return reply


def _server_method(described: MethodDescription, handler: MethodHandler) -> ServerMethod:
    row, result = described.row, described.result
    result_spec = [result, result.thrift_spec]
    spec = bytes_spec(described.arguments)
    request_fields = [field for field in described.request_spec[1] if field]
    return ServerMethod(
        row=row,
        handle=handler,
        args_spec=unique_field_spec(spec),
        type_check=TypeCheck(spec),
        request_fields=frozenset(field[2] for field in request_fields),
        list_fields=tuple(field[2] for field in request_fields if field[1] == TType.LIST),
        result_spec=result_spec,
        result_class=result,
        read_request=_REQUEST_READERS.get(row.name),
        encode_reply=_REPLY_ENCODERS.get(row.name) or _reply_encoder(result, result_spec),
        namespace_of=_field_getter(row.requirement.namespace_field),
    )


_REQUEST_READERS: Final = {"enqueue": request_bytes.read_enqueue, "ack": request_bytes.read_ack}
_REPLY_ENCODERS: Final[Mapping[str, Callable[[bool, Any], bytes]]] = {
    "dequeue": codec.encode_dequeue_reply,
    "enqueue": codec.encode_enqueue_reply,
    "restoreItems": codec.encode_enqueue_reply,
}
"""Of the other methods, Thrift's encoder reads the reply struct."""


def _reply_encoder(result: Any, spec: list[Any]) -> Callable[[bool, Any], bytes]:
    def encode(is_compact: bool, reply: Any) -> bytes:
        return encode_struct(is_compact, result(reply), spec)

    return encode


def _field_getter(path: str) -> Callable[[Any], bytes | None]:
    """Return a function that reads the field at a dotted path of a request; None if it, or its parent, is missing."""
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
