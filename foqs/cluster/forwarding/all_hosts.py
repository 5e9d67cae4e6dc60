"""Sends calls to all hosts of the tier and merges what they report.

Always true: each host reports for itself; the merge learns which hosts did not report.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any, Final, TypeAlias

from foqs.cluster.peers import Peer, Peers
from foqs.queue.port import PendingCall
from foqs.rpc.audit_handlers import audit_limit, newest_entries
from foqs.rpc.call import Call, Handler, ServerMethod
from foqs.rpc.in_host_calls import InHostCall
from foqs.rpc.methods import task_handler
from foqs_contract.errors import FoqsError
from foqs_contract.idl import ttypes
from foqs_contract.request import ForwardedRequest, Request
from foqs_contract.thrift_method import ThriftMethod

Merge: TypeAlias = Callable[[Any, Sequence[Any], Sequence[str]], Any]
"""(request, replies, names of the hosts that did not report) -> reply"""


class AllHosts:
    """Serves the calls whose reply is merged from the reports of all hosts of the tier."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    def layer(self, method: ServerMethod) -> Handler:
        """See `Layer`. Raises ValueError for a call that has no merge."""
        name, local = method.row.name, method.handle
        merge = _MERGES.get(name)
        if merge is None:
            raise ValueError(f"the call {name} goes to all hosts, and {__name__} has no merge of its replies; add one")
        client_method = ThriftMethod(name)

        async def gather(call: Call) -> Any:
            request: ForwardedRequest = copy(call.request)
            request.forwarded = True
            peers = list(self._peers.by_nonce.values())
            own, *others = await asyncio.gather(
                InHostCall(call.method, request, call.deadline, call.principal).make(),
                *(self._ask(peer, client_method, request, call.deadline) for peer in peers),
            )
            missing = [peer.view.name for peer, reply in zip(peers, others, strict=True) if reply is None]
            return merge(call.request, [own, *(reply for reply in others if reply is not None)], missing)

        gathering = task_handler(gather)

        def serve(call: Call) -> PendingCall | None:
            return (local if call.request.forwarded else gathering)(call)

        return serve

    async def _ask(self, peer: Peer, method: ThriftMethod, request: Request, deadline: float) -> Any | None:
        """Ask a peer, and return its reply; None if it does not answer."""
        try:
            return await self._peers.call(peer, method, request, deadline)
        except FoqsError:
            return None


def _merge_audits(
    request: ttypes.ListAuditRequest, replies: Sequence[ttypes.ListAuditReply], missing: Sequence[str]
) -> ttypes.ListAuditReply:
    """Return the newest changes of all hosts. Raises `InvalidArgument`."""
    entries = [entry for reply in replies for entry in reply.entries or ()]
    entries.sort(key=lambda entry: -(entry.at_ms or 0))
    return ttypes.ListAuditReply(newest_entries(entries, audit_limit(request)), list(missing) or None)


_MERGES: Final[Mapping[str, Merge]] = {"listAudit": _merge_audits}
"""The merge of each call that goes to all hosts."""
