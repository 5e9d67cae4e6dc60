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
from foqs_client.routes import Address
from foqs_client.types import Delivery

SLICE_MS: Final = 2_000
"""No poll waits longer for items to come."""

HOLD_S: Final = 0.1
"""What a poll brings that nobody waits for is kept for the next call: a consumer is often busy for a moment only."""
LEAVE_S: Final = 1.0
"""When the client closes, releasing is waited for no longer; leases end by themselves."""
PATIENCE_S: Final = 0.5
"""A host that has nothing to wait for answers sooner, unless it is frozen, or far too busy."""

Poll: TypeAlias = "asyncio.Task[list[Delivery]]"
Release: TypeAlias = Callable[[Sequence[Delivery]], Awaitable[object]]


class Kind(NamedTuple):
    """What a call asks for. Calls of one kind may take over each other's polls.

    Attributes:
        waits: the polls wait for items to come.
    """

    wants: tuple[tuple[str, int], ...]
    lease_ms: int | None
    items_max: int | None
    waits: bool

    def keep(self, found: Sequence[Delivery]) -> int:
        """How many of these, from the first, the call may have."""
        left = dict(self.wants)
        found = found[: self.items_max]
        for place, delivery in enumerate(found):
            if not left.get(delivery.topic, 0):
                return place
            left[delivery.topic] -= 1
        return len(found)


class Polls:
    """Those of one client.

    Args:
        release: gives items back.
    """

    def __init__(self, release: Release) -> None:
        self._release = release
        self._left: dict[Kind, dict[Address, Poll]] = {}
        self._waiting: dict[asyncio.Future[None], tuple[Kind, list[Delivery]]] = {}
        """Calls under way: what each has got so far, and a future that is done when it got something from another call's poll."""
        self._releasing: dict[asyncio.Task[object], None] = {}
        """In the order in which they began."""

    async def first(
        self,
        kind: Kind,
        hosts: Sequence[Address],
        begin: Callable[[Address], Awaitable[list[Delivery]]],
        until_s: float,
    ) -> list[Delivery]:
        """What the first host brings that answers; empty where it has nothing, and the other polls go on.

        Args:
            begin: a poll at a host.
            until_s: when to stop waiting for an answer, on the loop's clock.

        Raises:
            FoqsError: no host answered; of the last one.
        """
        loop = asyncio.get_running_loop()
        polls = self._take_over(kind)
        for host in hosts:
            if host not in polls:
                polls[host] = asyncio.ensure_future(begin(host))
        found: list[Delivery] = []
        failures: list[FoqsError] = []
        answers = 0
        with self._waits(kind, found) as given:
            try:
                while polls and not answers and not found and (left_s := until_s - loop.time()) > 0:
                    await _any_of(given, polls, left_s)
                    for host in [host for host, poll in polls.items() if poll.done()]:
                        try:
                            found += polls.pop(host).result()
                            answers += 1
                        except FoqsError as error:
                            failures.append(error)
            finally:
                self._leave(kind, polls)
        if not answers and not found:
            raise failures[-1] if failures else Unavailable("no host has answered yet")
        wanted = kind.keep(found)
        self.give_back(found[wanted:])
        return found[:wanted]

    def begin(self, kind: Kind, host: Address, begin: Callable[[Address], Awaitable[list[Delivery]]]) -> None:
        """Has a poll wait at a host, for the next call of this kind, unless one does."""
        if host not in self._left.get(kind, ()):
            self._leave(kind, {host: asyncio.ensure_future(begin(host))})

    def left_at(self, kind: Kind) -> Sequence[Address]:
        """Where polls of this kind still wait that no call waits for: nothing has come there since they began."""
        return [host for host, poll in self._left.get(kind, {}).items() if not poll.done()]

    def has_some(self, kind: Kind) -> bool:
        """A poll of this kind has brought something that no call has taken."""
        return any(_found(poll) for poll in self._left.get(kind, {}).values())

    async def sweep(
        self,
        kind: Kind,
        hosts: Sequence[Address],
        begin: Callable[[Address], Awaitable[list[Delivery]]],
        slow: Callable[[Address], None],
        patient: bool,
    ) -> list[Delivery]:
        """What the first host brings that has something, asked one after the other; empty when none has.

        A host that does not answer is waited for for `PATIENCE_S`; then the next one is asked beside it. One that has not
        answered an earlier call of this kind is not waited for.

        Args:
            begin: as of `first`.
            slow: told of a host that has not answered in time.
            patient: where no host has answered in time, the first answer is waited for.

        Raises:
            FoqsError: no host answered; of the last one.
        """
        loop = asyncio.get_running_loop()
        polls = self._take_over(kind)
        found: list[Delivery] = []
        failures: list[FoqsError] = []
        answers = 0

        async def look(timeout_s: float | None) -> None:
            nonlocal answers
            await _any_of(given, polls, timeout_s)
            for other in [other for other, poll in polls.items() if poll.done()]:
                try:
                    found.extend(polls.pop(other).result())
                    answers += 1
                except FoqsError as error:
                    failures.append(error)

        with self._waits(kind, found) as given:
            try:
                for host in hosts:
                    if host in polls and not polls[host].done():
                        continue
                    if host not in polls:
                        polls[host] = asyncio.ensure_future(begin(host))
                    until_s = loop.time() + PATIENCE_S
                    while host in polls and not found and (left_s := until_s - loop.time()) > 0:
                        await look(left_s)
                    if found:
                        break
                    if host in polls:
                        slow(host)
                while patient and polls and not answers and not found:
                    await look(None)
            finally:
                self._leave(kind, polls)
        if not answers and not found:
            raise failures[-1] if failures else Unavailable("no host has answered yet")
        wanted = kind.keep(found)
        self.give_back(found[wanted:])
        return found[:wanted]

    async def close(self) -> None:
        """Ends all that is under way: the hosts see the connections go, and take back what they would have brought."""
        held: list[Delivery] = []
        for left in self._left.values():
            for host in [host for host, poll in left.items() if _found(poll)]:
                held += left.pop(host).result()  # no call that is still made gets what is released
        self.give_back(held)
        loop = asyncio.get_running_loop()
        until_s = loop.time() + LEAVE_S
        while self._releasing and (left_s := until_s - loop.time()) > 0:
            await asyncio.wait(list(self._releasing), timeout=left_s)
        polls = [poll for left in self._left.values() for poll in left.values()]
        for task in (*polls, *self._releasing):
            task.cancel()
        await asyncio.gather(*polls, *self._releasing, return_exceptions=True)

    def _take_over(self, kind: Kind) -> dict[Address, Poll]:
        return self._left.pop(kind, {})

    def _leave(self, kind: Kind, polls: dict[Address, Poll]) -> None:
        """They go on, for the next call of this kind or for nobody."""
        left = self._left.setdefault(kind, {})
        for host, poll in polls.items():
            if host in left:
                # Two calls were under way: one poll is enough.
                poll.add_done_callback(lambda poll: self._ended(kind, poll))
            else:
                left[host] = poll
                poll.add_done_callback(lambda poll, host=host: self._ended_left(kind, host, poll))  # type: ignore[misc]
        if not left:
            del self._left[kind]

    def _ended_left(self, kind: Kind, host: Address, poll: Poll) -> None:
        if self._left.get(kind, {}).get(host) is not poll:
            return
        found = _found(poll)
        if found and not self._may_be_given(kind, found):
            asyncio.get_running_loop().call_later(HOLD_S, self._held_long_enough, kind, host, poll)
        else:
            self._held_long_enough(kind, host, poll)

    def _held_long_enough(self, kind: Kind, host: Address, poll: Poll) -> None:
        left = self._left.get(kind, {})
        if left.get(host) is poll:
            del left[host]
            if not left:
                del self._left[kind]
            self._ended(kind, poll)

    def _ended(self, kind: Kind, poll: Poll) -> None:
        """Nobody waits for it: what it brings is given to a call that still waits, else released."""
        found = _found(poll)
        while found and (call := self._may_be_given(kind, found)) is not None:
            wanted, got = self._waiting[call]
            count = wanted.keep(found)
            got += found[:count]
            found = found[count:]
            call.set_result(None)
        self.give_back(found)

    def _may_be_given(self, kind: Kind, found: Sequence[Delivery]) -> asyncio.Future[None] | None:
        """The oldest call under way that got nothing yet and would keep the first of these, which were leased for as long as it asks."""
        for call, (wanted, got) in self._waiting.items():
            if not call.done() and not got and wanted.lease_ms == kind.lease_ms and wanted.keep(found):
                return call
        return None

    @contextmanager
    def _waits(self, kind: Kind, found: list[Delivery]) -> Iterator[asyncio.Future[None]]:
        """A call is under way: other calls' polls may add to what it found, and the future is done then."""
        given: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[given] = kind, found
        try:
            yield given
        except BaseException:
            self.give_back(found)  # the call has gone
            raise
        finally:
            del self._waiting[given]

    def give_back(self, deliveries: Sequence[Delivery]) -> None:
        """Releases these; nobody waits for it."""
        if deliveries:
            task: asyncio.Task[object] = asyncio.ensure_future(self._released(deliveries))
            self._releasing[task] = None
            task.add_done_callback(self._releasing.pop)

    async def _released(self, deliveries: Sequence[Delivery]) -> None:
        """What cannot be released comes back when its lease ends."""
        try:
            await self._release(deliveries)
        except FoqsError:
            return


async def _any_of(given: asyncio.Future[None], polls: Mapping[Address, Poll], timeout_s: float | None) -> None:
    """Returns when one of these is done."""
    futures: list[asyncio.Future[Any]] = [given, *polls.values()]
    await asyncio.wait(futures, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)


def _found(poll: Poll) -> list[Delivery]:
    """What a poll has brought by now."""
    return poll.result() if poll.done() and not poll.cancelled() and poll.exception() is None else []
