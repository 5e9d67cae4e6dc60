"""Finds topics with items, page by page.

Holds `TopicDiscovery`. Always true: at most one call is in flight. The first listing
reads its pages without a pause. Later ones pause for twice the time that each page
took, so that many topics do not keep the hosts busy. A failure is retried. Knows
nothing of items.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from foqs_client.client import Client
from foqs_client.consumer.failure_backoff import FailureBackoff
from foqs_client.errors import FoqsError
from foqs_client.types import Topic

PAGE_TOPICS: Final = 1_000
REST_RATIO: Final = 2.0


class TopicDiscovery:
    """Lists a namespace's active topics again and again.

    Args:
        prefixes: the prefixes of the topics to list. Without one it lists nothing.
        on_topics_listed: gets the topics of each page.
        interval_s: the pause between two listings.
    """

    def __init__(
        self,
        client: Client,
        prefixes: Sequence[str],
        on_topics_listed: Callable[[Sequence[Topic]], None],
        backoff: FailureBackoff,
        interval_s: float,
        rng: Random,
    ) -> None:
        self._client = client
        self._prefixes = prefixes
        self._on_topics_listed = on_topics_listed
        self._backoff = backoff
        self._interval_s = interval_s
        self._rng = rng

    async def run(self) -> None:
        """List topics until it is cancelled. Returns at once if there is nothing to list."""
        rest_ratio = 0.0
        while self._prefixes:
            for prefix in self._prefixes:
                await self._list_topics(prefix, rest_ratio)
            rest_ratio = REST_RATIO
            await asyncio.sleep(self._interval_s * (0.75 + self._rng.random() / 2))

    async def _list_topics(self, prefix: str, rest_ratio: float) -> None:
        now_s = asyncio.get_running_loop().time
        cursor: str | None = None
        while True:
            begun_s = now_s()
            try:
                page = await self._client.topics(prefix, limit=PAGE_TOPICS, cursor=cursor)
            except FoqsError as error:
                await asyncio.sleep(self._backoff.on_failure(error))
                continue
            self._backoff.on_success()
            self._on_topics_listed(page.topics)
            cursor = page.next_cursor
            if cursor is None:
                return
            await asyncio.sleep((now_s() - begun_s) * rest_ratio)
