"""Guessing tokens is slow for the peer that guesses, and for no other."""

from __future__ import annotations

import asyncio

from foqs.console.failing_logins import FAILING_LOGINS_MAX, FailingLogins
from tests.support.virtual_time import run_virtual


def test_peer_with_many_wrong_tokens_is_refused_until_they_are_answered() -> None:
    async def main() -> None:
        logins = FailingLogins(2.0)
        guesses = [asyncio.ensure_future(logins.delay("10.0.0.1")) for _ in range(FAILING_LOGINS_MAX)]
        await asyncio.sleep(1.0)
        guesses[0].cancel()  # its browser has left
        await asyncio.sleep(0.5)
        assert not logins.may_log_in("10.0.0.1")
        assert logins.may_log_in("10.0.0.2")
        await asyncio.sleep(1.0)
        assert logins.may_log_in("10.0.0.1")
        assert all(guess.done() for guess in guesses)

    run_virtual(main)
