"""A purge of a topic, over all shards of a host.

Always true: when it succeeds, a cut of the topic is committed in every shard
that holds it, and the others have proved by a flush that they were not replaced
before they looked; when it fails with anything but an unknown outcome, no cut is
committed, nor will be. Knows nothing of what a cut does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from foqs.core.errors import DeadlineExceeded, FoqsError, NotOwner, Unavailable, UnknownOutcome
from foqs.core.flush.purge_markers import SetPurgeMarker
from foqs.core.items.item import TopicName
from foqs.shard.shard import Shard


async def purge_topic(shards: Sequence[Shard], topic: TopicName, deadline: float) -> int:
    """Purges the topic in these shards; how many items that were, as far as they are counted."""
    done = asyncio.Event()
    works: list[SetPurgeMarker] = []
    refusals: list[FoqsError] = []

    def finished() -> None:
        if not any(work.is_open for work in works):
            done.set()

    empty = [shard for shard in shards if not shard.may_have_items(topic)]
    for shard in shards:
        if shard in empty:
            continue
        try:
            works.append(shard.submit_purge(topic, finished))
        except FoqsError as error:
            refusals.append(error)
    if refusals:
        # One shard will not: the others need not. None of them is in a flush yet.
        for work in works:
            work.abandon()
        raise refusals[0]
    unproved: FoqsError | None = None
    try:
        async with asyncio.timeout_at(deadline):
            # Whoever was replaced knows nothing of what its successor holds.
            for shard in empty:
                await shard.confirm_ownership()
            if works:
                await done.wait()
    except TimeoutError:
        unproved = DeadlineExceeded("the time ran out before every shard had answered; try again")
    except (NotOwner, Unavailable) as error:
        unproved = error
    finally:
        for work in works:
            work.abandon()
    results = [result for work in works for result in work.results]
    errors = [result for result in results if isinstance(result, FoqsError)]
    if not errors and unproved is None:
        return sum(results)
    if not results and unproved is not None:
        raise unproved
    if len(errors) < len(results) or any(isinstance(error, UnknownOutcome) for error in errors):
        raise UnknownOutcome("the topic may be purged in part; call again, which does no harm but to newer items")
    raise errors[0]
