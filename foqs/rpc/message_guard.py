"""Refuses items of producers and consumers that pass for messages that the SQS port has made.

Always true: a caller that is no administrator gives no item a payload or metadata that
names a sender or an origin, whichever host it calls; nothing of such a call is done.
Hosts are administrators, so a forwarded call was checked where it was made. Knows nothing
of what is in a message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from foqs.core.items.reserved_starts import MESSAGE_START, ORIGIN_START
from foqs.queue.port import PendingCall
from foqs.rpc.methods import Caller, MethodHandler, RpcService, ServerMethod
from foqs.rpc.request_bytes import UsualItems
from foqs_contract.errors import PermissionDenied


class MessageGuard:
    """An `RpcService` for callers that authenticate over Thrift.

    Args:
        service: serves the calls; the SQS port uses it as it is.
    """

    def __init__(self, service: RpcService) -> None:
        self.timeout_s = service.timeout_s
        self.methods: Mapping[bytes, ServerMethod] = {
            name: replace(method, handle=_guarded(method.handle, _CHECKS[name])) if name in _CHECKS else method
            for name, method in service.methods.items()
        }


def _guarded(handle: MethodHandler, check: Callable[[Any], None]) -> MethodHandler:
    def serve(request: Any, deadline: float, caller: Caller) -> PendingCall | None:
        session = caller.session
        if session is not None and not session.is_administrator:
            check(request)
        return handle(request, deadline, caller)

    return serve


def _check_items(request: Any) -> None:
    """Raise `PermissionDenied` if a new item passes for a message."""
    items = request.items
    if type(items) is UsualItems:
        for place, (_, _, payload, metadata, _) in enumerate(items.rows):
            if payload.startswith(MESSAGE_START) or metadata.startswith(ORIGIN_START):
                raise _refusal(f"items[{place}]", is_payload=payload.startswith(MESSAGE_START))
        return
    for place, item in enumerate(items or ()):
        is_message = (item.payload or b"").startswith(MESSAGE_START)
        if is_message or (item.metadata or b"").startswith(ORIGIN_START):
            raise _refusal(f"items[{place}]", is_payload=is_message)


def _check_nacks(request: Any) -> None:
    """Raise `PermissionDenied` if a nack gives an item the origin of a dead letter."""
    for place, nack in enumerate(request.nacks or ()):
        if nack.metadata is not None and nack.metadata.startswith(ORIGIN_START):
            raise _refusal(f"nacks[{place}]", is_payload=False)


def _refusal(entry: str, *, is_payload: bool) -> PermissionDenied:
    what = (
        "payload begins as a message of SQS, which names its sender"
        if is_payload
        else ("metadata begins as the origin of a dead letter of SQS")
    )
    return PermissionDenied(
        f"this {what}; send it over the SQS port, or restore it as an ADMIN of the namespace",
        field=f"{entry}.{'payload' if is_payload else 'metadata'}",
    )


_CHECKS: Final[Mapping[bytes, Callable[[Any], None]]] = {b"enqueue": _check_items, b"nack": _check_nacks}
"""The calls with which a principal without ADMIN gives items a payload or metadata."""
