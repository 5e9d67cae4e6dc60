"""Principals, tokens and grants for tests."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Any

from foqs.access.authenticator import AuthenticationLimits, Authenticator
from foqs.access.keyring import Keyring

ORDERS, ADMIN = "orders-0123456789", "admin-0123456789"
"""Tokens of the principals `orders` and `admin`; the second is an administrator."""


class RecordingObserver:
    """An observer that records its calls."""

    def __init__(self) -> None:
        self.principals: list[str] = []
        self.failures = 0

    def authenticated(self, principal: str) -> None:
        self.principals.append(principal)

    def authentication_failed(self) -> None:
        self.failures += 1


class EditableGrants:
    """Grants, to be changed by the test."""

    def __init__(self, *permissions: int) -> None:
        self.table: dict[tuple[str, str], set[int]] = {("orders", "default"): set(permissions)}

    def __call__(self, principal: str, namespace: str) -> Collection[int]:
        return self.table.get((principal, namespace), ())


def keyring(client_ca: bytes | None = None, **tokens: str) -> Keyring:
    """Return a keyring with these tokens by principal. `orders` and `admin` have theirs by default."""
    all_tokens = {"orders": ORDERS, "admin": ADMIN} | tokens
    return Keyring(
        {hashlib.sha256(token.encode()).digest(): name for name, token in all_tokens.items()}, None, client_ca
    )


def gate(
    granted: EditableGrants | None = None, counted: RecordingObserver | None = None, **limits: Any
) -> Authenticator:
    """Return an authenticator for `orders`, which has these grants, and for the administrator `admin`."""
    values = {"failure_delay_s": 0.01, "timeout_s": 3_600.0} | limits
    return Authenticator(
        keyring(),
        ["admin"],
        granted or EditableGrants(),
        counted or RecordingObserver(),
        AuthenticationLimits(**values),
    )
