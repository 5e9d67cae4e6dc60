"""Work that goes on until a block ends, such as producers or consumers.

Always true: none of it runs after the block, and an error that ended some of it is raised there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any


@asynccontextmanager
async def running(works: Iterable[Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Let all of it run until the block ends."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended
