"""What hosts of a simulated fleet pass on to each other, counted.

Holds `CountedPeers`. Always true: as of `Peers`, in whose way it does not stand.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from foqs.core.errors import FoqsError, UnknownOutcome
from foqs.tier.peers import Peer, Peers, Unreached
from foqs_client.idl import ttypes
from foqs_client.message import Method

NAMES: Final = ("forwards", "redirects", "forwards refused", "forwards unanswered", "peers not reached")
"""Enqueues that another host had room for, or a slot; what else came of it."""


class CountedPeers(Peers):
    """Args:
    counts: what is counted, by `NAMES`.
    """

    def __init__(self, counts: Counter[str], *arguments: Any) -> None:
        super().__init__(*arguments)
        self._counts = counts

    async def call(self, peer: Peer, method: Method, request: Any, deadline: float) -> Any:
        try:
            reply = await super().call(peer, method, request, deadline)
        except Unreached:
            self._counts["peers not reached"] += 1
            raise
        except UnknownOutcome:
            self._counts["forwards unanswered"] += 1
            raise
        except FoqsError:
            self._counts["forwards refused"] += 1
            raise
        if isinstance(request, ttypes.EnqueueRequest):
            keyed = request.items[0].idempotency_key is not None
            self._counts["redirects" if keyed else "forwards"] += 1
        return reply
