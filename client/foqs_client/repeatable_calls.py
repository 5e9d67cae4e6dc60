"""Calls whose entries the host remembers, so that they may be sent twice.

Holds `RepeatableCalls`, the base of the calls that move, restore and complete items. Always true: an entry is sent again
until it has a final result or the call's time ends; a repeat finds the record of an attempt that was written, and gets
the same ids.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from foqs_client.errors import FoqsError, UnknownOutcome
from foqs_client.retried_calls import RetriedCall
from foqs_client.routed_calls import RoutedCalls
from foqs_client.routing_table import Address, call_by_host
from foqs_client.types import Completed, Enqueued

_E = TypeVar("_E")
_R = TypeVar("_R", Enqueued, Completed)


class RepeatableCalls(RoutedCalls):
    """The base of calls whose entries the host remembers."""

    async def _send_repeatable(
        self,
        entries: Sequence[_E],
        owner: Callable[[_E], Address | None],
        send: Callable[[Address | None, Sequence[_E], int], Awaitable[list[_R]]],
        result_class: type[_R],
        not_written_errors: tuple[type[FoqsError], ...],
        timeout_ms: int | None,
    ) -> list[_R]:
        """Send entries to the hosts of their shards, and again those that may have failed.

        Args:
            not_written_errors: errors which prove that no attempt was written or will be.
        """
        if not entries:
            return []
        self._router.refresh_if_due()
        if timeout_ms is None:
            timeout_ms = self.timeout_ms
        begun_s = asyncio.get_running_loop().time()

        async def attempt(entries: Sequence[_E], timeout_ms: int) -> list[_R]:
            results = await call_by_host(
                entries, owner, lambda at, part: send(at, part, timeout_ms), lambda error: result_class(error=error)
            )
            self._router.on_call_errors(result.error for result in results)
            return results

        async def retry(entries: Sequence[_E], timeout_ms: int) -> list[_R]:
            return await attempt(entries, await self._router.refresh_for_retry(timeout_ms))

        first: list[_R] | FoqsError
        try:
            first = await attempt(entries, timeout_ms)
        except FoqsError as error:
            self._router.on_call_errors([error])
            first = error
        call = _Repeatable(entries, result_class, not_written_errors)
        return await call.retry_until_done(first, retry, begun_s, timeout_ms, self._pool.sleep_unless_closed, self._rng)


class _Repeatable(RetriedCall[_E, _R]):
    """Repeats entries until each has a final result."""

    def __init__(
        self, entries: Sequence[_E], result_class: type[_R], not_written_errors: tuple[type[FoqsError], ...]
    ) -> None:
        missing: Any = result_class(
            error=UnknownOutcome(
                "the host's reply does not name this entry; it may have taken effect, so check before you repeat it"
            )
        )
        super().__init__(entries, missing)
        self._result_class: Callable[..., Any] = result_class
        self._not_written_errors = not_written_errors

    @property
    def not_written_errors(self) -> tuple[type[FoqsError], ...]:  # type: ignore[override]
        return self._not_written_errors

    def failure_result(self, error: FoqsError) -> _R:
        failed: _R = self._result_class(error=error)
        return failed

    def success_result(self, index: int, result: _R) -> _R:
        # A repeat of this call's own attempt is no repeat to its caller.
        return replace(result, repeated=False) if index in self._unknown_outcomes else result
