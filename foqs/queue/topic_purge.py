"""A purge of a topic over all shards of a host.

Always true: if it succeeds, a purge marker of the topic is committed in every
shard that holds items of it, and the other shards have confirmed by a flush
that this host still owned them. If it fails with another error than
`UnknownOutcome`, no marker is or will be committed. Knows nothing of the effect
of a marker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from foqs.core.flush.purge_markers import SetPurgeMarker
from foqs.core.items.item import TopicName
from foqs.shard.awaited_results import AwaitedResults
from foqs.shard.shard import OwnedShard
from foqs_contract.errors import DeadlineExceeded, FoqsError, NotOwner, Unavailable, UnknownOutcome


async def purge_topic(shards: Sequence[OwnedShard], topic: TopicName, deadline: float) -> int:
    """Purge the topic in these shards. Returns the number of items, as far as they are counted.

    Raises:
        UnknownOutcome: the topic may be purged in some of the shards.
        FoqsError: any other error; nothing was or will be purged.
    """
    operations: list[SetPurgeMarker] = []
    refusals: list[FoqsError] = []
    empty = [shard for shard in shards if not shard.may_have_items(topic)]
    awaited = AwaitedResults(len(shards) - len(empty))
    for shard in shards:
        if shard in empty:
            continue
        try:
            operations.append(shard.submit_purge(topic, awaited))
        except FoqsError as error:
            refusals.append(error)
    if refusals:
        # If one shard refuses, none is purged. No operation is in a flush yet.
        for operation in operations:
            operation.abandon()
        raise refusals[0]
    unconfirmed: FoqsError | None = None
    try:
        async with asyncio.timeout_at(deadline):
            # A shard that another host took over does not know what its new owner holds.
            for shard in empty:
                await shard.confirm_ownership()
            if operations:
                await awaited.future
    except TimeoutError:
        unconfirmed = DeadlineExceeded("the time ran out before every shard replied; try again")
    except (NotOwner, Unavailable) as error:
        unconfirmed = error
    finally:
        for operation in operations:
            operation.abandon()
    results = [result for operation in operations for result in operation.results]
    errors = [result for result in results if isinstance(result, FoqsError)]
    if not errors and unconfirmed is None:
        return sum(results)
    if not results and unconfirmed is not None:
        raise unconfirmed
    if len(errors) < len(results) or any(isinstance(error, UnknownOutcome) for error in errors):
        raise UnknownOutcome("the topic may be purged in part; call again, which also purges newer items")
    raise errors[0]
