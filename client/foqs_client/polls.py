"""Polls at several hosts: for calls that wait for work at all of them at once, for others at one after the other.

Holds `Polls`: by what was asked, the polls that are under way and that no call
waits for. Always true: what a poll brings goes to one call, which asked for just
that; what no call takes within `HOLD_S` is released, which costs it no attempt.
A call takes over the polls that an earlier one of the same kind has left, so
there is one at each host for each call that waits. Knows nothing of connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Final, TypeAlias

from foqs_client.errors import FoqsError, Unavailable
from foqs_client.routes import Address
from foqs_client.types import Delivery

SLICE_MS: Final = 2_000
"""No poll is longer: so long one may be under way that nobody waits for."""

HOLD_S: Final = 0.1
"""What a poll brings that nobody waits for is kept for the next call: a consumer is often busy for a moment only."""
LEAVE_S: Final = 1.0
"""When the client closes, releasing is waited for no longer; leases end by themselves."""
PATIENCE_S: Final = 0.5
"""A host that has nothing to wait for answers sooner, unless it is frozen, or far too busy."""

Poll: TypeAlias = "asyncio.Task[list[Delivery]]"
Release: TypeAlias = Callable[[Sequence[Delivery]], Awaitable[object]]


class Polls:
    """Those of one client.

    Args:
        release: gives items back.
    """

    def __init__(self, release: Release) -> None:
        self._release = release
        self._left: dict[Hashable, dict[Address, Poll]] = {}
        self._releasing: dict[asyncio.Task[object], None] = {}
        """In the order in which they began."""

    async def first(
        self,
        kind: Hashable,
        hosts: Sequence[Address],
        begin: Callable[[Address], Awaitable[list[Delivery]]],
        keep: Callable[[list[Delivery]], int],
    ) -> list[Delivery]:
        """What the first host brings that has something; empty when all have answered that they have nothing.

        Args:
            kind: calls of the same kind may take each other's polls.
            begin: a poll at a host.
            keep: how many of these, from the first, the call may have; the others are released.

        Raises:
            FoqsError: no host answered; of the last one.
        """
        polls = self._take_over(kind)
        for host in hosts:
            if host not in polls:
                polls[host] = asyncio.ensure_future(begin(host))
        found: list[Delivery] = []
        failures: list[FoqsError] = []
        count = len(polls)
        try:
            while polls and not found:
                await asyncio.wait(polls.values(), return_when=asyncio.FIRST_COMPLETED)
                for host in [host for host, poll in polls.items() if poll.done()]:
                    try:
                        found += polls.pop(host).result()
                    except FoqsError as error:
                        failures.append(error)
        finally:
            self._leave(kind, polls)
        if len(failures) == count:
            raise failures[-1]
        wanted = keep(found)
        self.give_back(found[wanted:])
        return found[:wanted]

    def begin(self, kind: Hashable, host: Address, begin: Callable[[Address], Awaitable[list[Delivery]]]) -> None:
        """Has a poll wait at a host, for the next call of this kind, unless one does."""
        if host not in self._left.get(kind, ()):
            self._leave(kind, {host: asyncio.ensure_future(begin(host))})

    def left_at(self, kind: Hashable) -> Sequence[Address]:
        """Where polls of this kind still wait that no call waits for: nothing has come there since they began."""
        return [host for host, poll in self._left.get(kind, {}).items() if not poll.done()]

    def has_some(self, kind: Hashable) -> bool:
        """A poll of this kind has brought something that no call has taken."""
        return any(_found(poll) for poll in self._left.get(kind, {}).values())

    async def sweep(
        self,
        kind: Hashable,
        hosts: Sequence[Address],
        begin: Callable[[Address], Awaitable[list[Delivery]]],
        keep: Callable[[list[Delivery]], int],
        slow: Callable[[Address], None],
        patient: bool,
    ) -> list[Delivery]:
        """What the first host brings that has something, asked one after the other; empty when none has.

        A host that does not answer is waited for for `PATIENCE_S`; then the next one is asked beside it. One that has not
        answered an earlier call of this kind is not waited for.

        Args:
            kind, begin, keep: as of `first`.
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
            await asyncio.wait(polls.values(), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            for other in [other for other, poll in polls.items() if poll.done()]:
                try:
                    found.extend(polls.pop(other).result())
                    answers += 1
                except FoqsError as error:
                    failures.append(error)

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
            while patient and polls and not answers:
                await look(None)
        finally:
            self._leave(kind, polls)
        if not answers:
            raise failures[-1] if failures else Unavailable("no host has answered yet")
        wanted = keep(found)
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

    def _take_over(self, kind: Hashable) -> dict[Address, Poll]:
        return self._left.pop(kind, {})

    def _leave(self, kind: Hashable, polls: dict[Address, Poll]) -> None:
        """They go on, for the next call of this kind or for nobody."""
        left = self._left.setdefault(kind, {})
        for host, poll in polls.items():
            if host in left:
                poll.add_done_callback(self._ended)  # two calls were under way: one poll is enough
            else:
                left[host] = poll
                poll.add_done_callback(lambda poll, host=host: self._ended_left(kind, host, poll))  # type: ignore[misc]
        if not left:
            del self._left[kind]

    def _ended_left(self, kind: Hashable, host: Address, poll: Poll) -> None:
        if self._left.get(kind, {}).get(host) is poll:
            hold_s = HOLD_S if _found(poll) else 0.0
            asyncio.get_running_loop().call_later(hold_s, self._held_long_enough, kind, host, poll)

    def _held_long_enough(self, kind: Hashable, host: Address, poll: Poll) -> None:
        left = self._left.get(kind, {})
        if left.get(host) is poll:
            del left[host]
            if not left:
                del self._left[kind]
            self._ended(poll)

    def _ended(self, poll: Poll) -> None:
        """Nobody waits for it."""
        self.give_back(_found(poll))

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


def _found(poll: Poll) -> list[Delivery]:
    """What a poll has brought by now."""
    return poll.result() if poll.done() and not poll.cancelled() and poll.exception() is None else []
