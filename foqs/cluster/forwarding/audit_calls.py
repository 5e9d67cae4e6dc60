"""Lists the changes of administrators at all hosts of the tier.

Always true: each host reports its own changes; a host that does not report is named in
the reply.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from copy import copy
from typing import Any

from foqs.cluster.forwarding.scatter_gather import ask_local
from foqs.cluster.peers import Peer, Peers
from foqs.queue.port import PendingCall
from foqs.rpc.audit_handlers import audit_limit, newest_entries
from foqs.rpc.methods import Caller, MethodHandler, task_handler
from foqs.rpc.methods import ServerMethod as Served
from foqs_contract.errors import FoqsError
from foqs_contract.idl import ttypes
from foqs_contract.thrift_method import ThriftMethod


def audit_calls(local: Mapping[bytes, Served], peers: Peers) -> Mapping[bytes, MethodHandler]:
    """Return the handlers by method name. `local` serves the calls by this host alone."""
    name = b"listAudit"
    gather = task_handler(_Gather(local[name], peers).list_audit)

    def handle(request: Any, deadline: float, caller: Caller) -> PendingCall | None:
        return (local[name].handle if request.forwarded else gather)(request, deadline, caller)

    return {name: handle}


class _Gather:
    def __init__(self, local: Served, peers: Peers) -> None:
        self._local = local
        self._peers = peers
        self._method = ThriftMethod(local.row.name)

    async def list_audit(self, request: Any, deadline: float) -> Any:
        limit = audit_limit(request)
        request = copy(request)
        request.forwarded = True
        peers = list(self._peers.by_nonce.values())
        own, *others = await asyncio.gather(
            ask_local(self._local, request, deadline), *(self._ask(peer, request, deadline) for peer in peers)
        )
        entries = list(own.entries or ())
        missing: list[str] = []
        for peer, reply in zip(peers, others, strict=True):
            if reply is None:
                missing.append(peer.view.name)
            else:
                entries += reply.entries or ()
        entries.sort(key=lambda entry: -(entry.at_ms or 0))
        return ttypes.ListAuditReply(newest_entries(entries, limit), missing or None)

    async def _ask(self, peer: Peer, request: Any, deadline: float) -> Any | None:
        """Return the reply of a peer; None if it does not report."""
        try:
            return await self._peers.call(peer, self._method, request, deadline)
        except FoqsError:
            return None
