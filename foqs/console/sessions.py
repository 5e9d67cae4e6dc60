"""The sessions of the console: a cookie that names a principal, and a code that proves it.

Always true: a cookie is valid only while its token is in the keyring and its end has
not come; nothing about a session is stored. The code's key is derived from the secret
of the cluster and the SHA-256 of the token, so every host with both accepts the cookie,
and neither alone suffices to forge one. Reads no clock.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Final

from foqs.access.authenticator import AuthenticatedPrincipal, Authenticator

_VERSION: Final = "2"
_KEY_PURPOSE: Final = b"foqs console session"
COOKIE_BYTES_MAX: Final = 1_024


def issue_cookie(authenticated: AuthenticatedPrincipal, ends_at_s: int, secret: bytes) -> str:
    """Return the value of a cookie for a principal that was authenticated by a token.

    Args:
        secret: the secret of the cluster's sessions.
        ends_at_s: seconds since 1970-01-01 UTC.
    """
    name = authenticated.principal.name
    code = _code(secret, authenticated.credential_digest, name, ends_at_s)
    return ".".join((_VERSION, _encode(name.encode()), str(ends_at_s), _encode(code)))


def read_cookie(
    cookie: str, authenticator: Authenticator, now_s: float, secret: bytes
) -> AuthenticatedPrincipal | None:
    """Return the principal of a cookie; None if it is malformed, forged, over, or its token or secret was removed."""
    parts = cookie.split(".")
    if len(cookie) > COOKIE_BYTES_MAX or len(parts) != 4 or parts[0] != _VERSION:
        return None
    raw_name, raw_end, raw_code = _decode(parts[1]), parts[2], _decode(parts[3])
    if raw_name is None or raw_code is None or not (raw_end.isascii() and raw_end.isdigit() and len(raw_end) <= 12):
        return None
    try:
        name = raw_name.decode()
    except UnicodeDecodeError:
        return None
    ends_at_s = int(raw_end)
    if ends_at_s <= now_s:
        return None
    found = None
    for authenticated in authenticator.authenticated_by_token(name):
        if hmac.compare_digest(_code(secret, authenticated.credential_digest, name, ends_at_s), raw_code):
            found = authenticated
    return found


def _code(secret: bytes, credential_digest: bytes, name: str, ends_at_s: int) -> bytes:
    key = hmac.digest(secret, _KEY_PURPOSE + credential_digest, hashlib.sha256)
    return hmac.digest(key, f"{ends_at_s}.{name}".encode(), hashlib.sha256)


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _decode(text: str) -> bytes | None:
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except ValueError:
        return None
    return data if _encode(data) == text else None
