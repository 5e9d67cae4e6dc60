"""The calls of a host of a tier: as it serves them alone, and with the others where that is asked for.

Holds `TierCalls`. Always true: a call that a peer has passed on is served by this
host alone, so no call is passed on twice; only hosts may say that a call was.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from foqs.core.errors import PermissionDenied
from foqs.service.api import Pending
from foqs.service.stock import Stock
from foqs.tier.byid import by_id
from foqs.tier.dequeues import Dequeues, Elsewhere, Silence
from foqs.tier.enqueues import Enqueues
from foqs.tier.peers import Peers
from foqs.tier.scatter import Scatter, ShardMap
from foqs.wire.handlers import Handlers
from foqs.wire.methods import Caller, Method, Serve


class TierCalls:
    """See `foqs.wire.methods.Calls`.

    Args:
        alone: the calls as this host serves them by itself.
        shards: who owns those of the tier.
        page_bytes_max: what a page of items carries.
        stock: what this host has; without it, it hands out its own items only, and tells nothing of them.
        elsewhere: what the other hosts have.
    """

    def __init__(
        self,
        alone: Handlers,
        peers: Peers,
        shards: ShardMap,
        page_bytes_max: int,
        stock: Stock | None = None,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        methods = alone.methods
        self.timeout_s = alone.timeout_s
        self.enqueues = Enqueues(methods[b"enqueue"].serve, peers)
        scatter = Scatter(methods, peers, shards, page_bytes_max)
        together: dict[bytes, Serve] = {b"enqueue": self.enqueues.serve, **scatter.served, **by_id(methods, peers)}
        self.dequeues: Dequeues | None = None
        if stock is not None:
            self.dequeues = Dequeues(methods[b"dequeue"].serve, peers, stock, elsewhere or Silence())
            together[b"dequeue"] = self.dequeues.serve
        self.methods: dict[bytes, Method] = {
            name: replace(method, serve=_hosts_only(together.get(name, method.serve)))
            if "forwarded" in method.fields
            else method
            for name, method in methods.items()
        }


def _hosts_only(serve: Serve) -> Serve:
    """The same, but nobody else's `forwarded` is believed."""

    def guarded(request: Any, deadline: float, caller: Caller) -> Pending | None:
        if request.forwarded and caller.visitor is not None and not caller.visitor.is_administrator:
            raise PermissionDenied(
                "only hosts pass calls on, and they are administrators; leave it out", field="forwarded"
            )
        return serve(request, deadline, caller)

    return guarded
