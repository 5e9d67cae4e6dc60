"""Polls at several hosts: for calls that wait for work at all of them at once, for others at one after the other.

Holds `Polls`: by what was asked, the polls that are under way and that no call
waits for. Always true: what a poll brings goes to one call, which asked for just
that, or waits and has room for it; what no call takes within `HOLD_S` is
released, which costs it no attempt. A call takes over the polls that an earlier
one of the same kind has left, so there is one at each host for each call that
waits. A slow host keeps its poll for as long as the call that began it may last,
and holds up no call that another host answers. Knows nothing of connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, TypeAlias

from foqs_client.errors import FoqsError, Unavailable
from foqs_client.routing_table import Address
from foqs_client.types import Delivery

POLL_MS_MAX: Final = 2_000
"""No poll waits longer for items to come."""

HOLD_S: Final = 0.1
"""What a poll brings that nobody waits for is kept for the next call: a consumer is often busy for a moment only."""
RELEASE_S_MAX: Final = 1.0
"""When the client closes, releasing is waited for no longer; leases end by themselves."""
SLOW_HOST_S: Final = 0.5
"""A host that has nothing to wait for answers sooner, unless it is frozen, or far too busy."""

Poll: TypeAlias = "asyncio.Task[list[Delivery]]"
Release: TypeAlias = Callable[[Sequence[Delivery]], Awaitable[object]]


class DequeueKind(NamedTuple):
    """What a call asks for. Calls of one kind may take over each other's polls.

    Attributes:
        waits: the polls wait for items to come.
    """

    wants: tuple[tuple[str, int], ...]
    lease_ms: int | None
    items_max: int | None
    is_long_poll: bool

    def accepted_count(self, deliveries: Sequence[Delivery]) -> int:
        """How many of these, from the first, the call may have."""
        left = dict(self.wants)
        deliveries = deliveries[: self.items_max]
        for place, delivery in enumerate(deliveries):
            if not left.get(delivery.topic, 0):
                return place
            left[delivery.topic] -= 1
        return len(deliveries)


class LongPolls:
    """Those of one client.

    Args:
        release: gives items back.
    """

    def __init__(self, release: Release) -> None:
        self._release = release
        self._detached: dict[DequeueKind, dict[Address, Poll]] = {}
        self._waiting_calls: dict[asyncio.Future[None], tuple[DequeueKind, list[Delivery]]] = {}
        """Calls under way: what each has got so far, and a future that is done when it got something from another call's poll."""
        self._releasing: dict[asyncio.Task[object], None] = {}
        """In the order in which they began."""

    async def poll_all(
        self,
        kind: DequeueKind,
        hosts: Sequence[Address],
        start_poll: Callable[[Address], Awaitable[list[Delivery]]],
        until_s: float,
    ) -> list[Delivery]:
        """What the first host brings that answers; empty where it has nothing, and the other polls go on.

        Args:
            start_poll: a poll at a host.
            until_s: when to stop waiting for an answer, on the loop's clock.

        Raises:
            FoqsError: no host answered; of the last one.
        """
        loop = asyncio.get_running_loop()
        polls = self._reattach(kind)
        for host in hosts:
            if host not in polls:
                polls[host] = asyncio.ensure_future(start_poll(host))
        found: list[Delivery] = []
        failures: list[FoqsError] = []
        answers = 0
        with self._waiting_call(kind, found) as given:
            try:
                while polls and not answers and not found and (left_s := until_s - loop.time()) > 0:
                    await _wait_any(given, polls, left_s)
                    for host in [host for host, poll in polls.items() if poll.done()]:
                        try:
                            found += polls.pop(host).result()
                            answers += 1
                        except FoqsError as error:
                            failures.append(error)
            finally:
                self._detach(kind, polls)
        if not answers and not found:
            raise failures[-1] if failures else Unavailable("no host has answered yet")
        wanted = kind.accepted_count(found)
        self.release_in_background(found[wanted:])
        return found[:wanted]

    def start_detached(
        self, kind: DequeueKind, host: Address, start_poll: Callable[[Address], Awaitable[list[Delivery]]]
    ) -> None:
        """Has a poll wait at a host, for the next call of this kind, unless one does."""
        if host not in self._detached.get(kind, ()):
            self._detach(kind, {host: asyncio.ensure_future(start_poll(host))})

    def detached_hosts(self, kind: DequeueKind) -> Sequence[Address]:
        """Where polls of this kind still wait that no call waits for: nothing has come there since they began."""
        return [host for host, poll in self._detached.get(kind, {}).items() if not poll.done()]

    def has_deliveries(self, kind: DequeueKind) -> bool:
        """A poll of this kind has brought something that no call has taken."""
        return any(_deliveries_of(poll) for poll in self._detached.get(kind, {}).values())

    async def poll_one_by_one(
        self,
        kind: DequeueKind,
        hosts: Sequence[Address],
        start_poll: Callable[[Address], Awaitable[list[Delivery]]],
        on_slow: Callable[[Address], None],
        wait_for_slow: bool,
    ) -> list[Delivery]:
        """What the first host brings that has something, asked one after the other; empty when none has.

        A host that does not answer is waited for for `PATIENCE_S`; then the next one is asked beside it. One that has not
        answered an earlier call of this kind is not waited for.

        Args:
            start_poll: as of `first`.
            on_slow: told of a host that has not answered in time.
            wait_for_slow: where no host has answered in time, the first answer is waited for.

        Raises:
            FoqsError: no host answered; of the last one.
        """
        loop = asyncio.get_running_loop()
        polls = self._reattach(kind)
        found: list[Delivery] = []
        failures: list[FoqsError] = []
        answers = 0

        async def look(timeout_s: float | None) -> None:
            nonlocal answers
            await _wait_any(given, polls, timeout_s)
            for other in [other for other, poll in polls.items() if poll.done()]:
                try:
                    found.extend(polls.pop(other).result())
                    answers += 1
                except FoqsError as error:
                    failures.append(error)

        with self._waiting_call(kind, found) as given:
            try:
                for host in hosts:
                    if host in polls and not polls[host].done():
                        continue
                    if host not in polls:
                        polls[host] = asyncio.ensure_future(start_poll(host))
                    until_s = loop.time() + SLOW_HOST_S
                    while host in polls and not found and (left_s := until_s - loop.time()) > 0:
                        await look(left_s)
                    if found:
                        break
                    if host in polls:
                        on_slow(host)
                while wait_for_slow and polls and not answers and not found:
                    await look(None)
            finally:
                self._detach(kind, polls)
        if not answers and not found:
            raise failures[-1] if failures else Unavailable("no host has answered yet")
        wanted = kind.accepted_count(found)
        self.release_in_background(found[wanted:])
        return found[:wanted]

    async def close(self) -> None:
        """Ends all that is under way: the hosts see the connections go, and take back what they would have brought."""
        held: list[Delivery] = []
        for left in self._detached.values():
            for host in [host for host, poll in left.items() if _deliveries_of(poll)]:
                held += left.pop(host).result()  # no call that is still made gets what is released
        self.release_in_background(held)
        loop = asyncio.get_running_loop()
        until_s = loop.time() + RELEASE_S_MAX
        while self._releasing and (left_s := until_s - loop.time()) > 0:
            await asyncio.wait(list(self._releasing), timeout=left_s)
        polls = [poll for left in self._detached.values() for poll in left.values()]
        for task in (*polls, *self._releasing):
            task.cancel()
        await asyncio.gather(*polls, *self._releasing, return_exceptions=True)

    def _reattach(self, kind: DequeueKind) -> dict[Address, Poll]:
        return self._detached.pop(kind, {})

    def _detach(self, kind: DequeueKind, polls: dict[Address, Poll]) -> None:
        """They go on, for the next call of this kind or for nobody."""
        left = self._detached.setdefault(kind, {})
        for host, poll in polls.items():
            if host in left:
                # Two calls were under way: one poll is enough.
                poll.add_done_callback(lambda poll: self._assign_or_release(kind, poll))
            else:
                left[host] = poll
                poll.add_done_callback(lambda poll, host=host: self._on_detached_ended(kind, host, poll))  # type: ignore[misc]
        if not left:
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
        left = self._detached.get(kind, {})
        if left.get(host) is poll:
            del left[host]
            if not left:
                del self._detached[kind]
            self._assign_or_release(kind, poll)

    def _assign_or_release(self, kind: DequeueKind, poll: Poll) -> None:
        """Nobody waits for it: what it brings is given to a call that still waits, else released."""
        found = _deliveries_of(poll)
        while found and (call := self._find_waiting_call(kind, found)) is not None:
            wanted, got = self._waiting_calls[call]
            count = wanted.accepted_count(found)
            got += found[:count]
            found = found[count:]
            call.set_result(None)
        self.release_in_background(found)

    def _find_waiting_call(self, kind: DequeueKind, deliveries: Sequence[Delivery]) -> asyncio.Future[None] | None:
        """The oldest call under way that got nothing yet and would keep the first of these, which were leased for as long as it asks."""
        for call, (wanted, got) in self._waiting_calls.items():
            if not call.done() and not got and wanted.lease_ms == kind.lease_ms and wanted.accepted_count(deliveries):
                return call
        return None

    @contextmanager
    def _waiting_call(self, kind: DequeueKind, deliveries: list[Delivery]) -> Iterator[asyncio.Future[None]]:
        """A call is under way: other calls' polls may add to what it found, and the future is done then."""
        given: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting_calls[given] = kind, deliveries
        try:
            yield given
        except BaseException:
            self.release_in_background(deliveries)  # the call has gone
            raise
        finally:
            del self._waiting_calls[given]

    def release_in_background(self, deliveries: Sequence[Delivery]) -> None:
        """Releases these; nobody waits for it."""
        if deliveries:
            task: asyncio.Task[object] = asyncio.ensure_future(self._try_release(deliveries))
            self._releasing[task] = None
            task.add_done_callback(self._releasing.pop)

    async def _try_release(self, deliveries: Sequence[Delivery]) -> None:
        """What cannot be released comes back when its lease ends."""
        try:
            await self._release(deliveries)
        except FoqsError:
            return


async def _wait_any(given: asyncio.Future[None], polls: Mapping[Address, Poll], timeout_s: float | None) -> None:
    """Returns when one of these is done."""
    futures: list[asyncio.Future[Any]] = [given, *polls.values()]
    await asyncio.wait(futures, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)


def _deliveries_of(poll: Poll) -> list[Delivery]:
    """What a poll has brought by now."""
    return poll.result() if poll.done() and not poll.cancelled() and poll.exception() is None else []
