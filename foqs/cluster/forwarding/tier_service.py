"""The RPC service of a host of a tier: local handlers, and handlers that use the other hosts.

Holds `TierService`. Always true: a call that a peer has forwarded is served by this
host alone, so no call is forwarded twice; only hosts may mark a call as forwarded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from foqs.queue.port import PendingCall
from foqs.rpc.methods import Caller, MethodHandler, ServerMethod
from foqs.rpc.queue_handlers import QueueHandlers
from foqs_contract.errors import PermissionDenied


class TierService:
    """The `foqs.rpc.methods.RpcService` of a host of a tier.

    Args:
        local: serves all calls by this host alone.
        forwarding: the handlers that use other hosts, by method name.
    """

    def __init__(self, local: QueueHandlers, forwarding: Mapping[bytes, MethodHandler]) -> None:
        self.timeout_s = local.timeout_s
        self.methods: dict[bytes, ServerMethod] = {
            name: replace(method, handle=_with_forwarded_guard(method, forwarding.get(name, method.handle)))
            for name, method in local.methods.items()
        }


def _with_forwarded_guard(method: ServerMethod, handler: MethodHandler) -> MethodHandler:
    return _accept_forwarded_from_hosts_only(handler) if "forwarded" in method.request_fields else handler


def _accept_forwarded_from_hosts_only(handler: MethodHandler) -> MethodHandler:
    """Wrap a handler so that it refuses `forwarded` from callers that are not hosts."""

    def guarded(request: Any, deadline: float, caller: Caller) -> PendingCall | None:
        if request.forwarded and caller.session is not None and not caller.session.is_administrator:
            raise PermissionDenied(
                "only hosts forward calls, and hosts are administrators; leave this out", field="forwarded"
            )
        return handler(request, deadline, caller)

    return guarded
