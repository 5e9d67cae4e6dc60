"""The page /scale: the figures of a topic for an autoscaler.

Holds `ScalePage`. Always true: the numbers are those of the whole tier, at any host; if
they are not complete, the page fails, because an autoscaler would stop consumers for
items that were only not counted. With authentication, a request needs a token whose
principal may read the topic. Knows nothing of HTTP but status codes.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from foqs.access.authenticator import Authenticator
from foqs.access.call_permissions import denial
from foqs.core.items.item import State, TopicName
from foqs.core.items.validation import decode_name
from foqs.core.limits.scaling import ScaleTarget, TopicWork, wanted_consumers
from foqs.core.memory.topic_rates import Rates
from foqs.queue.port import ListTopics, TopicStats
from foqs_contract.call_table import CALLS
from foqs_contract.errors import (
    FoqsError,
    InvalidArgument,
    NamespaceNotFound,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
)

TARGET_AGE_S_DEFAULT: Final = 60.0
TARGET_AGE_S_MAX: Final = 30 * 86_400.0
IN_FLIGHT_MAX: Final = 1_000_000
RATE_MAX: Final = 1e9

_STATUSES: Final[Mapping[type[FoqsError], int]] = {
    InvalidArgument: 400,
    Unauthenticated: 401,
    PermissionDenied: 403,
    NamespaceNotFound: 404,
    Unavailable: 503,
}
_ALL_STATES: Final = (State.READY, State.DEFERRED, State.LEASED, State.DEAD)
_PARAMETERS: Final = ("namespace", "topic", "rate", "target_age_s", "in_flight")


class ScalePage:
    """Answers /scale on one host.

    Args:
        list_topics: lists the topics of the tier.
        is_partial: returns whether the list may lack topics, or items of them.
        rates_of: returns the rates of a topic in the tier.
        check_namespace: raises `NamespaceNotFound`.
        authenticator: None if the host has no authentication.
    """

    def __init__(
        self,
        list_topics: ListTopics,
        is_partial: Callable[[], bool],
        rates_of: Callable[[TopicName], Rates],
        check_namespace: Callable[[str], object],
        authenticator: Authenticator | None,
    ) -> None:
        self._list_topics = list_topics
        self._is_partial = is_partial
        self._rates_of = rates_of
        self._check_namespace = check_namespace
        self._authenticator = authenticator

    async def answer(self, query: Mapping[str, str], authorization: str | None) -> tuple[int, Mapping[str, Any]]:
        """Return (status, JSON object).

        Args:
            query: namespace, topic, and the other parameters of docs/scaling.md.
            authorization: the header of this name: `Bearer` and a token.
        """
        try:
            return 200, await self._answer(query, authorization)
        except FoqsError as error:
            status = next((status for kind, status in _STATUSES.items() if isinstance(error, kind)), 500)
            return status, {"error": str(error)}

    async def _answer(self, query: Mapping[str, str], authorization: str | None) -> Mapping[str, Any]:
        principal = await self._authenticate(authorization)
        for name in query:
            if name not in _PARAMETERS:
                raise InvalidArgument(f"there is no such parameter; use one of {', '.join(_PARAMETERS)}", field=name)
        namespace = _parse_name(query, "namespace", "default")
        topic = _parse_name(query, "topic")
        target = _parse_target(query)
        if self._authenticator is not None and principal is not None:
            granted: Collection[int] = self._authenticator.permissions_of(principal.name, namespace)
            denied = denial(CALLS["getActiveTopics"].requirement, principal, granted)
            if denied is not None:
                raise denied
        self._check_namespace(namespace)
        was_partial = self._is_partial()
        page, _ = await self._list_topics(namespace, topic, _ALL_STATES, None, 1)
        stats = page[0] if page and page[0].topic == topic else None
        # A topic without items is missing in the list. So is one of a shard that was not served for a moment.
        if was_partial or self._is_partial() if stats is None else stats.counts_lag:
            raise Unavailable("the items of the topic are not all counted at the moment; try again")
        return _topic_answer(namespace, topic, stats, self._rates_of((namespace, topic)), target)

    async def _authenticate(self, authorization: str | None) -> Any:
        """Return the principal; None without authentication. Raises `Unauthenticated`, after a pause for a wrong token."""
        authenticator = self._authenticator
        if authenticator is None:
            return None
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise Unauthenticated("this host requires authentication; send the header Authorization: Bearer TOKEN")
        authenticated = authenticator.authenticate_token(token.strip().encode("utf-8", "surrogateescape"))
        if authenticated is None:
            authenticator.observer.authentication_failed()
            await asyncio.sleep(authenticator.limits.failure_delay_s)
            raise Unauthenticated("this token belongs to no principal; send one of a file that [auth.principals] names")
        return authenticated.principal


def _topic_answer(
    namespace: str, topic: str, stats: TopicStats | None, rates: Rates, target: ScaleTarget | None
) -> Mapping[str, Any]:
    """Return the answer for a topic; `stats` is None if it has no items."""
    age_ms = None if stats is None else stats.oldest_ready_age_ms
    found: dict[str, Any] = {
        "namespace": namespace,
        "topic": topic,
        "ready": 0 if stats is None else stats.ready,
        "deliverable": 0 if stats is None else _deliverable_items(stats),
        "leased": 0 if stats is None else stats.leased,
        "deferred": 0 if stats is None else stats.deferred,
        "dead": 0 if stats is None else stats.dead,
        "paused": stats is not None and stats.paused,
        "oldest_ready_age_s": 0.0 if age_ms is None else age_ms / 1_000,
        "ready_per_s": round(rates.ready, 3),
        "acked_per_s": round(rates.acked, 3),
    }
    if target is not None:
        # Nothing of a paused topic is delivered. Its consumers only finish what they hold.
        ready, ready_per_s = (0, 0.0) if found["paused"] else (found["ready"], rates.ready)
        work = TopicWork(ready, found["leased"], ready_per_s, min(ready, found["deliverable"]))
        found["wanted"] = wanted_consumers(work, target)
    return found


def _deliverable_items(stats: TopicStats) -> int:
    """Return how many READY items no group holds back."""
    if stats.deliverable is None:
        return stats.ready
    # In a fair topic, a host knows only the next item of each group, and consumers may have as many as the limit.
    by_group = stats.group_leases_max or 1 if stats.fair is not None else 1
    return min(stats.ready, stats.deliverable * by_group)


def _parse_name(query: Mapping[str, str], name: str, default: str | None = None) -> str:
    """Return the value of the query parameter `name`, a namespace or topic; `default` if it is absent. Raises `InvalidArgument`."""
    text = query.get(name, default)
    return decode_name(None if text is None else text.encode(errors="replace"), name)


def _parse_target(query: Mapping[str, str]) -> ScaleTarget | None:
    """Return the target; None without a rate. Raises `InvalidArgument`."""
    if "rate" not in query:
        for name in ("target_age_s", "in_flight"):
            if name in query:
                raise InvalidArgument("give the rate of one consumer too, in items per second", field="rate")
        return None
    return ScaleTarget(
        _parse_number(query, "rate", 0.0, RATE_MAX),
        _parse_number(query, "target_age_s", TARGET_AGE_S_DEFAULT, TARGET_AGE_S_MAX),
        int(_parse_number(query, "in_flight", 0.0, IN_FLIGHT_MAX)) if "in_flight" in query else 0,
    )


def _parse_number(query: Mapping[str, str], name: str, default: float, value_max: float) -> float:
    text = query.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= value_max:
        raise InvalidArgument(f"{text!r} is not a number above 0 and up to {value_max:g}", field=name)
    return value
