"""The calls of a host of a tier: as it serves them alone, and with the others where that is asked for.

Holds `TierService`. Always true: a call that a peer has passed on is served by this
host alone, so no call is passed on twice; only hosts may say that a call was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from foqs.core.errors import PermissionDenied
from foqs.queue.port import PendingCall
from foqs.rpc.methods import Caller, MethodHandler, ServerMethod
from foqs.rpc.queue_handlers import QueueHandlers


class TierService:
    """See `foqs.rpc.methods.RpcService`.

    Args:
        local: the calls as this host serves them by itself.
        forwarding: those that it serves with the others, by name.
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
    """The same, but nobody else's `forwarded` is believed."""

    def guarded(request: Any, deadline: float, caller: Caller) -> PendingCall | None:
        if request.forwarded and caller.session is not None and not caller.session.is_administrator:
            raise PermissionDenied(
                "only hosts pass calls on, and they are administrators; leave it out", field="forwarded"
            )
        return handler(request, deadline, caller)

    return guarded
