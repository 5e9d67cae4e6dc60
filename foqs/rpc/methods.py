"""The methods of the Thrift contract with their handlers: what a host serves.

Always true: every method of service Foqs has an entry; a method without a
handler fails as NOT_IMPLEMENTED. Knows nothing of connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Final

from thrift.Thrift import TType

from foqs.queue.port import PendingCall
from foqs.rpc import reply_structs, request_bytes
from foqs.rpc.call import Call, Handler, Layer, RequestCheck, ServerMethod, unchanged
from foqs.rpc.message_guard import check_items, check_nacks
from foqs.rpc.messages import bytes_spec, encode_struct, unique_field_spec
from foqs.rpc.type_check import TypeCheck
from foqs_contract.errors import NotImplementedYet, PermissionDenied
from foqs_contract.method_table import METHODS, MethodDescription
from foqs_contract.request import ForwardedRequest, Request


def unforwarded(method: ServerMethod) -> Handler:
    """Return the method's own handler: the `Layer` of a host that has no others beside it."""
    return method.handle


@dataclass(slots=True, frozen=True)
class RpcService:
    """The methods that a host serves, and the time that a call of them may take.

    Attributes:
        methods: every method of the contract by its name.
        timeout_s: returns how long the call of a request may take. Raises FoqsError.
    """

    methods: Mapping[bytes, ServerMethod]
    timeout_s: Callable[[Request], float]


def contract_methods(handlers: Mapping[str, Handler], layer: Layer = unforwarded) -> dict[bytes, ServerMethod]:
    """Return every method of the contract by name; a method without one of these handlers fails.

    Args:
        layer: see `Layer`. Raises ValueError for a call that it cannot serve.
    """
    unknown = set(handlers) - set(METHODS)
    if unknown:
        raise ValueError(
            f"the contract has no such methods: {', '.join(sorted(unknown))}; add them to thrift/foqs.thrift"
        )
    found: dict[bytes, ServerMethod] = {}
    for name, described in METHODS.items():
        method = _server_method(described, handlers.get(name) or _not_implemented(name))
        found[name.encode()] = replace(method, handle=layer(method))
    return found


def task_handler(serve: Callable[[Call], Coroutine[Any, Any, Any]]) -> Handler:
    """Return a handler that runs a task for each call; `serve` returns the reply struct."""

    async def run(call: Call) -> None:
        try:
            reply = await serve(call)
        except Exception as error:
            call.fail(error)
        else:
            call.reply(unchanged, reply)

    def start(call: Call) -> PendingCall:
        return _PendingTask(asyncio.get_running_loop().create_task(run(call)))

    return start


@dataclass(slots=True, frozen=True)
class _PendingTask:
    """A pending call that is served by a task."""

    task: asyncio.Task[None]

    def abandon(self) -> None:
        self.task.cancel()


def _server_method(described: MethodDescription, handler: Handler) -> ServerMethod:
    row, result = described.row, described.result
    result_spec = [result, result.thrift_spec]
    spec = bytes_spec(described.arguments)
    request_fields = [field for field in described.request_spec[1] if field]
    names = {field[2] for field in request_fields}
    return ServerMethod(
        row=row,
        handle=handler,
        args_spec=unique_field_spec(spec),
        type_check=TypeCheck(spec),
        request_fields=frozenset(names),
        list_fields=tuple(field[2] for field in request_fields if field[1] == TType.LIST),
        result_spec=result_spec,
        result_class=result,
        read_request=_REQUEST_READERS.get(row.name),
        encode_reply=_REPLY_ENCODERS.get(row.name) or _reply_encoder(result, result_spec),
        namespace_of=_field_getter(row.requirement.namespace_field),
        check=_request_check(row.name, names),
        is_audited=row.is_audited,
    )


_CHECKS: Final[Mapping[str, RequestCheck]] = {"enqueue": check_items, "nack": check_nacks}
"""The calls with which a principal without ADMIN gives items a payload or metadata."""


def _request_check(name: str, fields: Collection[str]) -> RequestCheck:
    """Return the check of a request of a principal that is no administrator."""
    check = _CHECKS.get(name)

    def check_request(request: ForwardedRequest) -> None:
        if request.forwarded:
            raise PermissionDenied(
                "only hosts forward calls, and hosts are administrators; leave this out", field="forwarded"
            )
        if check is not None:
            check(request)

    return check_request if "forwarded" in fields else check or _no_check


def _no_check(request: Request) -> None:
    pass


_REQUEST_READERS: Final = {"enqueue": request_bytes.read_enqueue, "ack": request_bytes.read_ack}
_REPLY_ENCODERS: Final[Mapping[str, Callable[[bool, Any], bytes]]] = {
    "dequeue": reply_structs.encode_dequeue_reply,
    "enqueue": reply_structs.encode_enqueue_reply,
    "restoreItems": reply_structs.encode_enqueue_reply,
}
"""The encoders of replies that may have many entries. The replies of other methods are encoded by Thrift's encoder."""


def _reply_encoder(result: Any, spec: list[Any]) -> Callable[[bool, Any], bytes]:
    def encode(is_compact: bool, reply: Any) -> bytes:
        return encode_struct(is_compact, result(reply), spec)

    return encode


def _field_getter(path: str) -> Callable[[Any], bytes | None]:
    """Return a function that reads the field at a dotted path of a request; None if it, or its parent, is missing."""
    read: Callable[[Any], bytes | None] = attrgetter(path)
    if "." not in path:
        return read

    def read_inner(request: Request) -> bytes | None:
        try:
            return read(request)
        except AttributeError:
            return None

    return read_inner


def _not_implemented(name: str) -> Handler:
    def serve(call: Call) -> None:
        raise NotImplementedYet(f"{name} is not served by this version; do not call it")

    return serve
