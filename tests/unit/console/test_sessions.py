"""The console's cookies: who gets in with which one."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.access.authenticator import AuthenticatedPrincipal, Authenticator
from foqs.access.call_permissions import Principal
from foqs.access.keyring import Keyring
from foqs.console.sessions import issue_cookie, read_cookie

SECRET = b"s" * 32
NOW_S = 1_800_000_000.5
ENDS_S = 1_800_003_600


class Uncounted:
    def authenticated(self, principal: str) -> None: ...

    def authentication_failed(self) -> None: ...


def digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def authenticator(**tokens: tuple[bytes, ...]) -> Authenticator:
    keyring = Keyring({digest(token): name for name, many in tokens.items() for token in many})
    return Authenticator(keyring, ["boss"], lambda principal, namespace: (), Uncounted())


def cookie_of(found: Authenticator, token: bytes, ends_at_s: int = ENDS_S) -> str:
    authenticated = found.authenticate_token(token)
    assert authenticated is not None
    return issue_cookie(authenticated, ends_at_s, SECRET)


def test_a_cookie_names_its_principal_until_its_end() -> None:
    found = authenticator(boss=(b"one", b"two"), ünï=(b"three",))
    cookie = cookie_of(found, b"two")
    assert read_cookie(cookie, found, NOW_S, SECRET) == AuthenticatedPrincipal(
        Principal("boss", is_admin=True), digest(b"two")
    )
    assert read_cookie(cookie, found, ENDS_S - 0.001, SECRET) is not None
    assert read_cookie(cookie, found, ENDS_S, SECRET) is None
    other = read_cookie(cookie_of(found, b"three"), found, NOW_S, SECRET)
    assert other is not None
    assert other.principal == Principal("ünï")


def test_every_host_with_the_token_accepts_the_cookie() -> None:
    cookie = cookie_of(authenticator(boss=(b"one",)), b"one")
    assert read_cookie(cookie, authenticator(other=(b"x",), boss=(b"one", b"two")), NOW_S, SECRET) is not None


def test_another_secret_ends_all_sessions() -> None:
    found = authenticator(boss=(b"one",))
    cookie = cookie_of(found, b"one")
    assert read_cookie(cookie, found, NOW_S, SECRET) is not None
    assert read_cookie(cookie, found, NOW_S, b"t" * 32) is None


def test_a_removed_token_ends_its_sessions_only() -> None:
    found = authenticator(boss=(b"one", b"two"))
    first, second = cookie_of(found, b"one"), cookie_of(found, b"two")
    found.keyring = replace(found.keyring, principal_by_digest={digest(b"two"): "boss"})
    assert read_cookie(first, found, NOW_S, SECRET) is None
    assert read_cookie(second, found, NOW_S, SECRET) is not None


def test_a_token_that_belongs_to_another_principal_now_ends_its_sessions() -> None:
    cookie = cookie_of(authenticator(boss=(b"one",)), b"one")
    assert read_cookie(cookie, authenticator(guest=(b"one",)), NOW_S, SECRET) is None


def forged(cookie: str, place: int, value: str) -> str:
    parts = cookie.split(".")
    parts[place] = value
    return ".".join(parts)


def text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


@pytest.mark.parametrize(
    "change",
    [
        lambda cookie: forged(cookie, 0, "1"),
        lambda cookie: forged(cookie, 1, text(b"boss")),
        lambda cookie: forged(cookie, 1, text(b"\xff")),
        lambda cookie: forged(cookie, 2, str(ENDS_S + 1)),
        lambda cookie: forged(cookie, 2, f"+{ENDS_S}"),
        lambda cookie: forged(cookie, 2, "9" * 5_000),
        lambda cookie: forged(cookie, 2, "\u0661"),
        lambda cookie: forged(cookie, 3, text(bytes(32))),
        lambda cookie: forged(cookie, 3, ""),
        lambda cookie: cookie + "=",
        lambda cookie: cookie + ".x",
        lambda cookie: cookie[:-1],
        lambda cookie: "",
        lambda cookie: "x" * 100_000,
    ],
)
def test_a_forged_cookie_is_refused(change: object) -> None:
    found = authenticator(boss=(b"one",), guest=(b"two",))
    assert read_cookie(change(cookie_of(found, b"two")), found, NOW_S, SECRET) is None  # type: ignore[operator]


@given(st.text(max_size=200))
def test_any_text_is_refused_without_an_error(cookie: str) -> None:
    assert read_cookie(cookie, authenticator(boss=(b"one",)), NOW_S, SECRET) is None
