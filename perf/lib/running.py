"""Work that goes on until a block ends, such as producers or consumers.

Always true: none of it runs after the block, and no error that ended some of it is dropped: it is raised there, or is a note of
the block's own error.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any


@asynccontextmanager
async def running(works: Iterable[Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Let all of it run until the block ends. Raises ExceptionGroup if some of it ended with an error, and the block did not."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        yield
    except BaseException as error:
        for failure in await _end(tasks):
            error.add_note(f"work beside it had ended: {failure!r}")
        raise
    if failures := await _end(tasks):
        raise ExceptionGroup("work had ended with an error", failures)


async def _end(tasks: Sequence[asyncio.Future[None]]) -> list[Exception]:
    """Cancel the tasks, and return the errors with which they ended."""
    for task in tasks:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    return [result for result in results if isinstance(result, Exception)]
