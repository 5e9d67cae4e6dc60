"""What the hosts of a tier tell each other: each asks every other one about once a second.

Holds `Exchange`. Always true: a host is asked one thing at a time, and every
asking ends by a deadline; what changed comes in pages with pauses between them,
so that a hundred thousand topics hold up nobody; a host that does not answer is
asked again, and what it said last stays until it is gone from the plan. Knows
nothing of what is done with what is told.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from foqs.core.errors import FoqsError
from foqs.tier.local import LocalTopics
from foqs.tier.peers import Peer, Peers
from foqs.tier.summaries import Summaries
from foqs.wire.methods import Caller, as_it_is
from foqs_client.idl import ttypes
from foqs_client.message import Method

log = logging.getLogger(__name__)

PAGE_PAUSE_S: Final = 0.01
"""Between two pages of one host, and between two rounds of looking at many topics of this one."""
_JITTER: Final = 0.1
_PERIODS: Final = 3
"""So many of them an answer is waited for."""
_EXCHANGE: Final = Method("exchange", writes=False)


@dataclass(slots=True, frozen=True)
class ExchangeSettings:
    """See `[cluster]` in configs/foqs.toml for units and reasons."""

    exchange_ms: int
    exchange_topics_max: int
    peer_topics_max: int
    gone_topics_max: int


class Exchange:
    """Args:
    load: what waits here to be written, in items.
    takes_items: some shard here takes new items.
    """

    def __init__(
        self,
        settings: ExchangeSettings,
        peers: Peers,
        local: LocalTopics,
        summaries: Summaries,
        load: Callable[[], float],
        takes_items: Callable[[], bool],
        rng: Random,
    ) -> None:
        self.demands: Callable[[], Sequence[Any]] = tuple
        """What this host tells of its namespaces: NamespaceDemands."""
        self.on_demands: Callable[[Peer, Sequence[Any]], None] = _nobody
        """Told what a peer told of its own."""
        self.on_gone: Callable[[Collection[Peer]], None] = _nobody
        """Told peers that are there no more."""
        self.asked = 0
        """Answers of peers that came."""
        self.failures = 0
        """Answers that did not come, or were refusals."""
        self._settings = settings
        self._peers = peers
        self._local = local
        self._summaries = summaries
        self._load = load
        self._takes_items = takes_items
        self._rng = rng
        self._asking: dict[Peer, asyncio.Task[None]] = {}
        self._since: dict[Peer, float] = {}
        """When each peer was seen first, on the loop's clock."""

    @property
    def oldest_s(self) -> float:
        """How long ago that was so which is known of the peer that has been silent for the longest; 0 without peers."""
        now = asyncio.get_running_loop().time()
        heard = [self._summaries.heard_at(peer) for peer in self._since]
        return max(
            (now - (since if at is None else at) for at, since in zip(heard, self._since.values(), strict=True)),
            default=0.0,
        )

    # -------------------------------------------------------------------- telling

    def serve(self, request: Any, deadline: float, caller: Caller) -> None:
        """Serves `exchange`; see `Serve`."""
        settings = self._settings
        coming = self._local.gather(settings.exchange_topics_max, anew=not request.goes_on)
        changes = self._local.since(request.version, request.whole_since, settings.exchange_topics_max)
        reply = ttypes.ExchangeReply(
            version=changes.version,
            topics=self._local.summaries(changes.topics),
            whole=changes.whole,
            whole_since=changes.whole_since,
            more=changes.more or coming,
            demands=list(self.demands()),
            load=self._load(),
            takes_items=self._takes_items(),
        )
        caller.answer(as_it_is, reply)

    # --------------------------------------------------------------------- asking

    async def run(self) -> None:
        """Asks all peers, again and again, until it is cancelled."""
        try:
            more = False
            while True:
                self._follow()
                more = self._local.gather(self._settings.exchange_topics_max, anew=not more)
                await asyncio.sleep(PAGE_PAUSE_S if more else self._period_s())
        finally:
            for task in self._asking.values():
                task.cancel()
            await asyncio.gather(*self._asking.values(), return_exceptions=True)

    def _follow(self) -> None:
        """Peers come and go."""
        peers = list(self._peers.others.values())
        gone = [peer for peer in self._asking if peer not in peers]
        for peer in gone:
            self._asking.pop(peer).cancel()
            del self._since[peer]
        if gone:
            self._summaries.gone(gone)
            self.on_gone(gone)
        for peer in peers:
            if peer not in self._asking:
                self._since[peer] = asyncio.get_running_loop().time()
                self._asking[peer] = asyncio.ensure_future(self._ask_always(peer))

    async def _ask_always(self, peer: Peer) -> None:
        silent = more = False
        while True:
            try:
                more = await self._ask(peer, goes_on=more)
                if silent:
                    log.info("host %s answers again", peer.view.name)
                silent = False
            except FoqsError as error:
                more = False
                self.failures += 1
                if not silent:
                    log.warning("what host %s has is not known, or of before: %s", peer.view.name, error)
                silent = True
            except Exception:  # what one host said must not keep the others from being heard
                more = False
                self.failures += 1
                log.exception("what host %s said cannot be taken in", peer.view.name)
            await asyncio.sleep(PAGE_PAUSE_S if more else self._period_s())

    async def _ask(self, peer: Peer, *, goes_on: bool) -> bool:
        """Returns whether there is more to ask for at once; `goes_on`: there was. Raises FoqsError."""
        asked_at = asyncio.get_running_loop().time()
        summaries = self._summaries
        request = ttypes.ExchangeRequest(summaries.version(peer), None, summaries.whole_since(peer), goes_on or None)
        deadline = asked_at + _PERIODS * self._settings.exchange_ms / 1_000
        reply = await self._peers.call(peer, _EXCHANGE, request, deadline)
        self.asked += 1
        peer.load = reply.load or 0.0
        peer.takes_items = reply.takes_items is not False
        summaries.told(peer, reply, asked_at, goes_on=goes_on)
        self.on_demands(peer, reply.demands or ())
        return bool(reply.more)

    def _period_s(self) -> float:
        return self._settings.exchange_ms / 1_000 * self._rng.uniform(1 - _JITTER, 1 + _JITTER)


def _nobody(*told: Any) -> None:
    """Nobody listens."""
