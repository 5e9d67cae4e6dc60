"""Moves messages that were received too often to the dead letter queue of their queue.

A dead letter first becomes DEAD in its own queue, with its origin, and then it is moved by
its id. Always true: each step is one flush, and only the move makes a new item; so
there is one copy, also if a step between them fails. `dead_letter_sweep` moves what is left.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from foqs.access.call_permissions import Principal
from foqs.rpc.in_host_calls import InHostCalls, raw_id
from foqs.sqs import origin
from foqs.sqs.identifiers import message_id
from foqs.sqs.redrive_policy import Redrive
from foqs_contract.errors import FoqsError, LimitExceeded, error_from_struct
from foqs_contract.idl import ttypes

log = logging.getLogger(__name__)


class DeadLetters:
    """Moves messages to dead letter queues.

    Args:
        timeout_s: the time for each call inside the host.
        now_s: seconds since 1970-01-01 UTC.
    """

    def __init__(self, calls: InHostCalls, timeout_s: float, now_s: Callable[[], float]) -> None:
        self._calls = calls
        self._timeout_s = timeout_s
        self._now_s = now_s

    async def move(self, redrive: Redrive, deliveries: Sequence[Any], principal: Principal | None) -> None:
        """Move leased messages to the target.

        A message for which this fails stays in its queue: leased until its visibility timeout ends, or DEAD.
        """
        try:
            dead = await self._give_up(redrive, deliveries, principal)
            if dead:
                await move_dead_letters(self._calls, redrive, dead, self._timeout_s, principal)
        except FoqsError as error:
            log.info(
                "dead letters of the queue %s of namespace %s are not moved yet: %s",
                redrive.source,
                redrive.namespace,
                error.message,
            )

    async def _give_up(self, redrive: Redrive, deliveries: Sequence[Any], principal: Principal | None) -> list[bytes]:
        """Make leased messages DEAD, with their origins. Return the ids of those for which this succeeded."""
        dead: list[bytes] = []
        left = list(deliveries)
        for with_origin in (True, False):  # a namespace may allow less metadata than an origin takes
            nacks = [self._nack(redrive, delivery, with_origin=with_origin) for delivery in left]
            request = ttypes.NackRequest(namespace_name=redrive.namespace.encode(), nacks=nacks)
            reply = await self._calls.call("nack", request, self._timeout_s, principal)
            outcomes = list(zip(left, reply.outcomes or (), strict=False))
            dead += [raw_id(delivery.id) for delivery, outcome in outcomes if outcome.error is None]
            left = [delivery for delivery, outcome in outcomes if _is_about_metadata(outcome.error)]
            if not left:
                break
        return dead

    def _nack(self, redrive: Redrive, delivery: Any, *, with_origin: bool) -> ttypes.Nack:
        metadata = self._origin(redrive, delivery) if with_origin else None
        return ttypes.Nack(id=raw_id(delivery.id), token=delivery.token, dead=True, metadata=metadata)

    def _origin(self, redrive: Redrive, delivery: Any) -> bytes | None:
        """Return the origin as metadata of a dead letter; None if the item has metadata of its producer, which stays."""
        if not origin.may_be_replaced(delivery.metadata):
            return None
        before = origin.decode(delivery.metadata, redrive.source)
        receives = delivery.attempt - 1  # no consumer gets this delivery
        first_ms = int(self._now_s() * 1_000) - (delivery.first_delivery_age_ms or 0)
        dead_letter = origin.Origin(
            queue=redrive.target,
            source=redrive.source,
            message_id=message_id(raw_id(delivery.id).decode()) if before is None else before.message_id,
            receives=receives if before is None else before.receives + receives,
            first_received_ms=first_ms if before is None else before.first_received_ms,
        )
        return origin.encode(dead_letter)


async def move_dead_letters(
    calls: InHostCalls,
    redrive: Redrive,
    ids: Sequence[bytes],
    timeout_s: float,
    principal: Principal | None = None,
    *,
    is_local: bool = False,
) -> None:
    """Move DEAD items to the target, whose retention begins now.

    Args:
        is_local: all of them are in shards of this host, and no other host is asked.

    Raises:
        FoqsError: at least one of them was not moved, for this reason. The others were.
    """
    request = ttypes.MoveItemsRequest(
        namespace_name=redrive.namespace.encode(),
        ids=list(ids),
        topic=redrive.target.encode(),
        ttl_remaining_ms=redrive.retention_ms,
        forwarded=True if is_local else None,
    )
    reply = await calls.call("moveItems", request, timeout_s, principal)
    for outcome in reply.outcomes or ():
        if outcome.error is not None:
            raise error_from_struct(outcome.error, "refused")


def _is_about_metadata(error: ttypes.Error | None) -> bool:
    found = None if error is None else error_from_struct(error, "refused")
    return isinstance(found, LimitExceeded) and (found.field or "").endswith("metadata")
