"""Logins and sessions of a console on loopback."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final, NoReturn

import aiohttp

from foqs.access.authenticator import AuthenticatedPrincipal, AuthenticationLimits, Authenticator
from foqs.access.keyring import Keyring
from foqs.console.server import LOGINS_IN_FLIGHT_MAX, SESSION_S, Console, ConsoleSettings
from foqs.options.rpc_options import RpcOptions
from tests.support.aio import run

TOKEN: Final = "the-token-of-ann"
FAILURE_DELAY_S: Final = 0.5


class Failures:
    """Counts authentications, and says when there were enough failures."""

    def __init__(self) -> None:
        self.count = 0
        self.enough = asyncio.Event()

    def authenticated(self, principal: str) -> None:
        pass

    def authentication_failed(self) -> None:
        self.count += 1
        if self.count == LOGINS_IN_FLIGHT_MAX:
            self.enough.set()


class Site:
    """A console with the principal `ann`, who has no permission, and a client with cookies."""

    def __init__(self) -> None:
        self.failures = Failures()
        self.now_s = 1_800_000_000.0
        self._http: aiohttp.ClientSession
        self._port = 0

    @asynccontextmanager
    async def started(self) -> AsyncIterator[Site]:
        keyring = Keyring({hashlib.sha256(TOKEN.encode()).digest(): "ann"})
        limits = AuthenticationLimits(failure_delay_s=FAILURE_DELAY_S)
        authenticator = Authenticator(keyring, [], lambda principal, namespace: (), self.failures, limits)
        settings = ConsoleSettings(
            host_name="one",
            is_cluster=False,
            authenticator=authenticator,
            permissions_of=authenticator.permissions_of,
            namespaces=list,
            tls=None,
            limits=RpcOptions(),
            on_handshake_failed=lambda: None,
            now_s=lambda: self.now_s,
        )
        console = Console(settings, no_calls)
        self._port = await console.start("127.0.0.1", 0)
        try:
            async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as self._http:
                yield self
        finally:
            await console.stop()

    async def log_in(self, token: str) -> int:
        """Return the status."""
        form = {"token": token, "next": "/"}
        headers = {"Sec-Fetch-Site": "same-origin"}
        async with self._http.post(self._url("/login"), data=form, headers=headers, allow_redirects=False) as answer:
            return answer.status

    async def overview(self) -> tuple[int, str]:
        """Return the status of the overview, and where it leads."""
        async with self._http.get(self._url("/"), allow_redirects=False) as answer:
            return answer.status, answer.headers.get("Location", "")

    def _url(self, path: str) -> str:
        return f"http://127.0.0.1:{self._port}{path}"


def no_calls(principal: AuthenticatedPrincipal | None) -> NoReturn:
    raise AssertionError("no page of this test makes a call")


def story(coro: Coroutine[Any, Any, None]) -> None:
    run(coro, timeout=20)


def test_a_session_ends_by_itself() -> None:
    async def main() -> None:
        async with Site().started() as site:
            assert await site.overview() == (303, "/login?next=/")
            assert await site.log_in(TOKEN) == 303
            site.now_s += SESSION_S - 1
            assert await site.overview() == (200, "")
            site.now_s += 1
            assert await site.overview() == (303, "/login?next=/")

    story(main())


def test_guessing_tokens_is_slow_and_while_many_guess_nobody_logs_in() -> None:
    async def main() -> None:
        async with Site().started() as site:
            started_s = asyncio.get_running_loop().time()
            guesses = [asyncio.ensure_future(site.log_in("wrong")) for _ in range(LOGINS_IN_FLIGHT_MAX)]
            await site.failures.enough.wait()
            assert await site.log_in(TOKEN) == await site.log_in("wrong") == 429
            assert await asyncio.gather(*guesses) == [403] * LOGINS_IN_FLIGHT_MAX
            assert asyncio.get_running_loop().time() - started_s >= FAILURE_DELAY_S
            assert site.failures.count == LOGINS_IN_FLIGHT_MAX
            assert await site.log_in(TOKEN) == 303

    story(main())
