"""A purge of a topic, over all shards of a host.

Always true: when it succeeds, a cut of the topic is committed in every shard;
when it fails with anything but an unknown outcome, in none, nor will be. Knows
nothing of what a cut does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from foqs.core.cuts import MakeCut
from foqs.core.errors import FoqsError, UnknownOutcome
from foqs.core.item import TopicName
from foqs.shard.shard import Shard


async def purge_topic(shards: Sequence[Shard], topic: TopicName, deadline: float) -> int:
    """Purges the topic in these shards; how many items that were, as far as they are counted."""
    done = asyncio.Event()
    works: list[MakeCut] = []
    refusals: list[FoqsError] = []

    def finished() -> None:
        if not any(work.is_open for work in works):
            done.set()

    for shard in shards:
        if not shard.may_hold(topic):
            continue
        try:
            works.append(shard.purge(topic, finished))
        except FoqsError as error:
            refusals.append(error)
    if refusals:
        # One shard will not: the others need not. None of them is in a flush yet.
        for work in works:
            work.expire()
        raise refusals[0]
    if not works:
        return 0
    try:
        async with asyncio.timeout_at(deadline):
            await done.wait()
    except TimeoutError:
        pass
    finally:
        for work in works:
            work.expire()
    results = [result for work in works for result in work.results]
    errors = [result for result in results if isinstance(result, FoqsError)]
    if not errors:
        return sum(results)
    if len(errors) < len(results) or any(isinstance(error, UnknownOutcome) for error in errors):
        raise UnknownOutcome("the topic may be purged in part; call again, which does no harm but to newer items")
    raise errors[0]
