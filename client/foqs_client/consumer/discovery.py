"""Finding topics with work, page by page.

Holds `Discovery`. Always true: one call is under way; the first look at all pages
goes as fast as they come, later ones rest for twice as long as each page took, so
that many topics cost the hosts a part of their time and not all of it; a failure
ends nothing. Knows nothing of items.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from foqs_client.client import Client
from foqs_client.consumer.backoff import Trouble
from foqs_client.errors import FoqsError
from foqs_client.types import Topic

PAGE_TOPICS: Final = 1_000
REST_SHARE: Final = 2.0


class Discovery:
    """The list of a namespace's active topics, read again and again.

    Args:
        prefixes: what is listed; none: nothing is.
        found: told of each page.
        interval_s: between two looks.
    """

    def __init__(
        self,
        client: Client,
        prefixes: Sequence[str],
        found: Callable[[Sequence[Topic]], None],
        trouble: Trouble,
        interval_s: float,
        rng: Random,
    ) -> None:
        self._client = client
        self._prefixes = prefixes
        self._found = found
        self._trouble = trouble
        self._interval_s = interval_s
        self._rng = rng

    async def run(self) -> None:
        """Returns when it is cancelled, or at once where there is nothing to list."""
        rest_share = 0.0
        while self._prefixes:
            for prefix in self._prefixes:
                await self._look(prefix, rest_share)
            rest_share = REST_SHARE
            await asyncio.sleep(self._interval_s * (0.75 + self._rng.random() / 2))

    async def _look(self, prefix: str, rest_share: float) -> None:
        now_s = asyncio.get_running_loop().time
        cursor: str | None = None
        while True:
            begun_s = now_s()
            try:
                page = await self._client.topics(prefix, limit=PAGE_TOPICS, cursor=cursor)
            except FoqsError as error:
                await asyncio.sleep(self._trouble.failed(error))
                continue
            self._trouble.worked()
            self._found(page.topics)
            cursor = page.next_cursor
            if cursor is None:
                return
            await asyncio.sleep((now_s() - begun_s) * rest_share)
