"""The calls of a host of a tier: as it serves them alone, and with the others where that is asked for.

Holds `TierCalls`. Always true: a call that a peer has passed on is served by this
host alone, so no call is passed on twice; only hosts may say that a call was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from foqs.core.errors import PermissionDenied
from foqs.service.api import Pending
from foqs.wire.handlers import Handlers
from foqs.wire.methods import Caller, Method, Serve


class TierCalls:
    """See `foqs.wire.methods.Calls`.

    Args:
        alone: the calls as this host serves them by itself.
        together: those that it serves with the others, by name.
    """

    def __init__(self, alone: Handlers, together: Mapping[bytes, Serve]) -> None:
        self.timeout_s = alone.timeout_s
        self.methods: dict[bytes, Method] = {
            name: replace(method, serve=_guarded(method, together.get(name, method.serve)))
            for name, method in alone.methods.items()
        }


def _guarded(method: Method, serve: Serve) -> Serve:
    return _hosts_only(serve) if "forwarded" in method.fields else serve


def _hosts_only(serve: Serve) -> Serve:
    """The same, but nobody else's `forwarded` is believed."""

    def guarded(request: Any, deadline: float, caller: Caller) -> Pending | None:
        if request.forwarded and caller.visitor is not None and not caller.visitor.is_administrator:
            raise PermissionDenied(
                "only hosts pass calls on, and they are administrators; leave it out", field="forwarded"
            )
        return serve(request, deadline, caller)

    return guarded
