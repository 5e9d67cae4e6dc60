"""Which requests the console refuses, and the headers of all its answers.

Pure functions of a request's method and headers. See docs/design/console.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from foqs.runtime.host_header import is_localhost_or_address

HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""The headers of every answer."""
_SAFE_METHODS: Final = ("GET", "HEAD")


def cross_site_refusal(method: str, headers: Mapping[str, str], own_origin: str) -> str | None:
    """Return why a request that changes something is refused, or None. Only the console's own pages may send one.

    Args:
        own_origin: the origin of the console's pages.
    """
    if method in _SAFE_METHODS:
        return None
    site = headers.get("Sec-Fetch-Site")
    if site is not None:
        return None if site == "same-origin" else f"this form came from another site (Sec-Fetch-Site: {site})"
    origin = headers.get("Origin")
    if origin is None:
        return "the request names neither Sec-Fetch-Site nor Origin; use a current browser"
    return None if origin == own_origin else f"this form came from another origin than {own_origin}"


def stream_refusal(headers: Mapping[str, str]) -> str | None:
    """Return why an event stream is refused, or None. Another site cannot read one, but it could hold many open."""
    site = headers.get("Sec-Fetch-Site")
    return None if site in (None, "same-origin", "none") else f"this page is of another site (Sec-Fetch-Site: {site})"


def host_refusal(headers: Mapping[str, str]) -> str | None:
    """Return why a request is refused by a console without authentication, or None: it must name this machine.

    A page of another site could otherwise reach the console by a name of its own that it points here.
    """
    if is_localhost_or_address(headers.get("Host", "")):
        return None
    return "without authentication the console answers only to localhost and to addresses; open it by one of these"
