"""Reads the items of some shards, page by page.

Holds `check_source`, `read_pages` and `Pacer`. Always true: each page is one call, which
is retried until its time ends; it reads on at the cursor of the page before, so an item
is read once. The pages of several shards alternate, so that no shard gets the whole
load. One page is read ahead. Writes nothing. Does not know PySpark.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Final, TypeVar

from foqs_client.errors import FoqsError, Unreachable
from foqs_client.spark.job_client import make_client
from foqs_client.spark.job_error import SourceError
from foqs_client.spark.source_options import SourceOptions
from foqs_client.sync_client import SyncClient
from foqs_client.types import ItemPage
from foqs_contract.backoff import Backoff

CALL_TIMEOUT_MS: Final = 10_000
BACKOFF_S_MIN: Final = 0.1
BACKOFF_S_MAX: Final = 5.0
PAGES_PER_SECOND: Final = 10
"""A slow read is divided into this many pages a second, so that its load is even."""
LATE_S_MAX: Final = 1.0
"""A read that was held up catches up by this time at most."""

R = TypeVar("R")


def check_source(options: SourceOptions) -> list[int]:
    """Check that the hosts serve a read, by reading one item. Return the numbers of the shards.

    Raises:
        SourceError: no host can be reached, or a host refuses the principal, the namespace or the filter.
    """
    with make_client(SyncClient, options, options.namespace, SourceError) as client:
        try:
            shards = sorted(shard.shard for shard in retried(client.routing, options.timeout_ms).shards)
            if shards:
                _read_page(client, options, shards[0], 1, None)
        except FoqsError as error:
            raise read_refusal(error) from None
    if not shards:
        raise SourceError("the hosts have no shards yet; add one with foqs shard add")
    return shards


def read_pages(options: SourceOptions, shards: Sequence[int]) -> Iterator[ItemPage]:
    """Yield the pages of these shards that have items. Raises SourceError."""
    with make_client(SyncClient, options, options.namespace, SourceError) as client:
        pages = _pages(client, options, shards)
        with ThreadPoolExecutor(1, thread_name_prefix="foqs-pages") as thread:
            following = thread.submit(next, pages, None)
            while (page := following.result()) is not None:
                following = thread.submit(next, pages, None)
                yield page


class Pacer:
    """Keeps the rate of a read.

    Args:
        rows_per_second: the rate; None: no limit.
        clock: returns seconds.
        sleep: waits for some seconds.
    """

    def __init__(
        self,
        rows_per_second: int | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = rows_per_second
        self._clock = clock
        self._sleep = sleep
        self._due_s = clock()

    def page_rows(self, rows_max: int) -> int:
        """Return how many rows the next page may have."""
        return rows_max if self._rate is None else max(1, min(rows_max, self._rate // PAGES_PER_SECOND))

    def wait_after(self, rows: int) -> None:
        """Wait until the rate allows the next page after one of this length."""
        if self._rate is None:
            return
        now_s = self._clock()
        self._due_s = max(self._due_s, now_s - LATE_S_MAX) + rows / self._rate
        if self._due_s > now_s:
            self._sleep(self._due_s - now_s)


def read_refusal(error: FoqsError) -> SourceError:
    """Return the error of a read that the hosts do not serve."""
    if isinstance(error, Unreachable):
        return SourceError(f"no host can be reached: {error.message}")
    return SourceError(f"the hosts refuse this read: {error}")


def _pages(client: SyncClient, options: SourceOptions, shards: Sequence[int]) -> Iterator[ItemPage]:
    pacer = Pacer(options.rows_per_second)
    cursors: dict[int, str | None] = dict.fromkeys(shards)
    while cursors:
        for shard in list(cursors):
            rows = pacer.page_rows(options.page_rows)
            try:
                page = _read_page(client, options, shard, rows, cursors[shard])
            except FoqsError as error:
                raise SourceError(f"shard {shard}: {read_refusal(error)}") from None
            if page.next_cursor is None:
                del cursors[shard]
            else:
                cursors[shard] = page.next_cursor
            if page.items:
                yield page
            # The host has read as many rows as it may for a page that is short and not the last one.
            pacer.wait_after(len(page.items) if page.next_cursor is None else rows)


def _read_page(client: SyncClient, options: SourceOptions, shard: int, rows: int, cursor: str | None) -> ItemPage:
    return retried(
        lambda timeout_ms: client.list_items(
            shard,
            options.only,
            rows,
            cursor,
            with_payload=options.payload,
            with_key=options.details,
            timeout_ms=timeout_ms,
        ),
        options.timeout_ms,
    )


def retried(call: Callable[..., R], time_ms: int) -> R:
    """Make a call that only reads, retry it until its time ends, and return its result.

    Args:
        call: called with `timeout_ms`. Raises FoqsError.
        time_ms: the time of all attempts.

    Raises:
        FoqsError: a later attempt cannot succeed, or the time ended.
    """
    backoff = Backoff(BACKOFF_S_MIN, BACKOFF_S_MAX, Random(), (1.0, 1.25))
    deadline = time.monotonic() + time_ms / 1_000
    attempts = 0
    while True:
        left_ms = int((deadline - time.monotonic()) * 1_000)
        try:
            return call(timeout_ms=max(1, min(left_ms, CALL_TIMEOUT_MS)))
        except FoqsError as error:
            wait_s = backoff.pause_s(attempts, error.retry_after_ms or 0)
            if not error.may_succeed_later or time.monotonic() + wait_s >= deadline:
                raise
        attempts += 1
        time.sleep(wait_s)
