"""Polls at several hosts: at all of them at once for long polls, else at one after the other.

Holds `LongPolls`, which keeps detached polls by kind: polls in flight that no call
waits for. Always true: the items of a poll are assigned to one call of the same kind, or
to a waiting call that wants them. A run goes to one call, which asked for runs: what it
does not take is released. Items that no call accepts within `HOLD_S` are
released, without a counted attempt. A call reattaches the detached polls of its kind,
so there is one poll at each host for each waiting call. A poll at a slow host lasts as
long as the call that began it, and delays no call that another host serves. Knows
nothing of connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, TypeAlias

from foqs_client.errors import FoqsError, Unavailable
from foqs_client.releases import Releases
from foqs_client.routing_table import Address
from foqs_client.types import Delivery

POLL_MS_MAX: Final = 2_000
"""The longest wait of one poll."""

HOLD_S: Final = 0.1
"""Items of a detached poll are held this long for the next call: a consumer is often busy only for a moment."""
SLOW_HOST_S: Final = 0.5
"""A host that replies to a dequeue without a wait later than this is frozen or overloaded."""

Poll: TypeAlias = "asyncio.Task[list[Delivery]]"


class DequeueKind(NamedTuple):
    """The kind of a dequeue: the items that it asks for. Calls of one kind can take over each other's polls.

    Attributes:
        is_long_poll: whether the polls wait for items.
    """

    wants: tuple[tuple[str, int], ...]
    lease_ms: int | None
    items_max: int | None
    is_long_poll: bool
    run_max: int = 1

    def accepted_count(self, deliveries: Sequence[Delivery]) -> int:
        """Return how many of these, from the first, the call can accept."""
        remaining = dict(self.wants)
        deliveries = deliveries[: self.items_max]
        for place, delivery in enumerate(deliveries):
            if not remaining.get(delivery.topic, 0):
                return place
            remaining[delivery.topic] -= 1
        return len(deliveries)


class LongPolls:
    """The long polls of one client.

    Args:
        releases: releases items that no call gets.
    """

    def __init__(self, releases: Releases) -> None:
        self._releases = releases
        self._detached: dict[DequeueKind, dict[Address, Poll]] = {}
        self._waiting_calls: dict[asyncio.Future[None], tuple[DequeueKind, list[Delivery]]] = {}
        """Calls in flight: their kind and items, by a future that is done when another call's poll gave items."""

    async def poll_all(
        self,
        kind: DequeueKind,
        hosts: Sequence[Address],
        start_poll: Callable[[Address], Awaitable[list[Delivery]]],
        until_s: float,
    ) -> list[Delivery]:
        """Poll all hosts at once. Return the items of the first reply, which may be empty; the other polls continue.

        Args:
            start_poll: polls a host.
            until_s: the moment at which to stop waiting for a reply, on the loop's clock.

        Raises:
            FoqsError: no host replied with success; the error of the last one.
        """
        loop = asyncio.get_running_loop()
        polls = self._reattach(kind)
        for host in hosts:
            if host not in polls:
                polls[host] = asyncio.ensure_future(start_poll(host))
        found: list[Delivery] = []
        failures: list[FoqsError] = []
        reply_count = 0
        with self._waiting_call(kind, found) as assigned:
            try:
                while polls and not reply_count and not found and (left_s := until_s - loop.time()) > 0:
                    await _wait_any(assigned, polls, left_s)
                    for host in [host for host, poll in polls.items() if poll.done()]:
                        try:
                            found += polls.pop(host).result()
                            reply_count += 1
                        except FoqsError as error:
                            failures.append(error)
            finally:
                self._detach(kind, polls)
        if not reply_count and not found:
            raise failures[-1] if failures else Unavailable("no host has replied yet; try again")
        accepted = kind.accepted_count(found)
        self._releases.start(found[accepted:])
        return found[:accepted]

    def start_detached(
        self, kind: DequeueKind, host: Address, start_poll: Callable[[Address], Awaitable[list[Delivery]]]
    ) -> None:
        """Start a poll at a host for the next call of this kind, unless there is one."""
        if host not in self._detached.get(kind, ()):
            self._detach(kind, {host: asyncio.ensure_future(start_poll(host))})

    def detached_hosts(self, kind: DequeueKind) -> Sequence[Address]:
        """Return the hosts with detached polls of this kind that have no reply."""
        return [host for host, poll in self._detached.get(kind, {}).items() if not poll.done()]

    def has_deliveries(self, kind: DequeueKind) -> bool:
        """Return whether a detached poll of this kind has items."""
        return any(_deliveries_of(poll) for poll in self._detached.get(kind, {}).values())

    async def poll_one_by_one(
        self,
        kind: DequeueKind,
        hosts: Sequence[Address],
        start_poll: Callable[[Address], Awaitable[list[Delivery]]],
        on_slow: Callable[[Address], None],
        wait_for_slow: bool,
    ) -> list[Delivery]:
        """Poll one host after the other. Return the items of the first host that has some; else an empty list.

        If a host does not reply within `SLOW_HOST_S`, the next one is polled as well. A host that has
        not replied to an earlier call of this kind is not polled again.

        Args:
            start_poll: polls a host.
            on_slow: gets each host that has not replied in time.
            wait_for_slow: if no host has replied in time, wait for the first reply.

        Raises:
            FoqsError: no host replied with success; the error of the last one.
        """
        loop = asyncio.get_running_loop()
        polls = self._reattach(kind)
        found: list[Delivery] = []
        failures: list[FoqsError] = []
        reply_count = 0

        async def collect_replies(timeout_s: float | None) -> None:
            nonlocal reply_count
            await _wait_any(assigned, polls, timeout_s)
            for other in [other for other, poll in polls.items() if poll.done()]:
                try:
                    found.extend(polls.pop(other).result())
                    reply_count += 1
                except FoqsError as error:
                    failures.append(error)

        with self._waiting_call(kind, found) as assigned:
            try:
                for host in hosts:
                    if host in polls and not polls[host].done():
                        continue
                    if host not in polls:
                        polls[host] = asyncio.ensure_future(start_poll(host))
                    until_s = loop.time() + SLOW_HOST_S
                    while host in polls and not found and (left_s := until_s - loop.time()) > 0:
                        await collect_replies(left_s)
                    if found:
                        break
                    if host in polls:
                        on_slow(host)
                while wait_for_slow and polls and not reply_count and not found:
                    await collect_replies(None)
            finally:
                self._detach(kind, polls)
        if not reply_count and not found:
            raise failures[-1] if failures else Unavailable("no host has replied yet; try again")
        accepted = kind.accepted_count(found)
        self._releases.start(found[accepted:])
        return found[:accepted]

    async def close(self) -> None:
        """Release the held items and cancel all polls."""
        held: list[Delivery] = []
        for detached in self._detached.values():
            for host in [host for host, poll in detached.items() if _deliveries_of(poll)]:
                held += detached.pop(host).result()  # removed, so that no later call gets a released item
        self._releases.start(held)
        polls = [poll for detached in self._detached.values() for poll in detached.values()]
        self._detached.clear()
        for poll in polls:
            poll.cancel()
        await asyncio.gather(*polls, return_exceptions=True)

    def _reattach(self, kind: DequeueKind) -> dict[Address, Poll]:
        return self._detached.pop(kind, {})

    def _detach(self, kind: DequeueKind, polls: dict[Address, Poll]) -> None:
        """Let polls continue, for the next call of this kind."""
        detached = self._detached.setdefault(kind, {})
        for host, poll in polls.items():
            if host in detached:
                # Two calls were in flight, and one detached poll is enough.
                poll.add_done_callback(lambda poll: self._assign_or_release(kind, poll))
            else:
                detached[host] = poll
                poll.add_done_callback(lambda poll, host=host: self._on_detached_ended(kind, host, poll))  # type: ignore[misc]
        if not detached:
            del self._detached[kind]

    def _on_detached_ended(self, kind: DequeueKind, host: Address, poll: Poll) -> None:
        if self._detached.get(kind, {}).get(host) is not poll:
            return
        found = _deliveries_of(poll)
        if found and not self._find_waiting_call(kind, found):
            asyncio.get_running_loop().call_later(HOLD_S, self._on_hold_ended, kind, host, poll)
        else:
            self._on_hold_ended(kind, host, poll)

    def _on_hold_ended(self, kind: DequeueKind, host: Address, poll: Poll) -> None:
        detached = self._detached.get(kind, {})
        if detached.get(host) is poll:
            del detached[host]
            if not detached:
                del self._detached[kind]
            self._assign_or_release(kind, poll)

    def _assign_or_release(self, kind: DequeueKind, poll: Poll) -> None:
        """Give the items of a detached poll to waiting calls, and release the rest."""
        found = _deliveries_of(poll)
        while found and (assigned := self._find_waiting_call(kind, found)) is not None:
            call_kind, call_items = self._waiting_calls[assigned]
            count = call_kind.accepted_count(found)
            call_items += found[:count]
            found = found[count:]
            assigned.set_result(None)
            if kind.run_max > 1:
                break  # another call must not have items behind those of this one
        self._releases.start(found)

    def _find_waiting_call(self, kind: DequeueKind, deliveries: Sequence[Delivery]) -> asyncio.Future[None] | None:
        """Return the oldest waiting call without items that accepts the first of these, their lease duration and their runs."""
        for assigned, (call_kind, call_items) in self._waiting_calls.items():
            if (
                not assigned.done()
                and not call_items
                and call_kind.lease_ms == kind.lease_ms
                and call_kind.run_max >= kind.run_max
                and call_kind.accepted_count(deliveries)
            ):
                return assigned
        return None

    @contextmanager
    def _waiting_call(self, kind: DequeueKind, deliveries: list[Delivery]) -> Iterator[asyncio.Future[None]]:
        """Register a waiting call. Detached polls may add items to `deliveries`; the future is done then."""
        assigned: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting_calls[assigned] = kind, deliveries
        try:
            yield assigned
        except BaseException:
            self._releases.start(deliveries)  # the call was cancelled or failed
            raise
        finally:
            del self._waiting_calls[assigned]


async def _wait_any(assigned: asyncio.Future[None], polls: Mapping[Address, Poll], timeout_s: float | None) -> None:
    """Wait until one of these is done."""
    futures: list[asyncio.Future[Any]] = [assigned, *polls.values()]
    await asyncio.wait(futures, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)


def _deliveries_of(poll: Poll) -> list[Delivery]:
    """Return the items of a poll that has ended; else an empty list."""
    return poll.result() if poll.done() and not poll.cancelled() and poll.exception() is None else []
