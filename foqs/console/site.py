"""The address at which browsers find the console: its own port, or the URL of a proxy in front of it.

Always true: every address in a page begins with the prefix of that URL, and the cookie
goes to no address outside of it. Everywhere else in the console a path has no prefix.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Any, TypedDict
from urllib.parse import urlencode

from aiohttp import web

from foqs.options.console_url import ConsoleUrl
from foqs.runtime.peer_network import peer_network


class CookieFlags(TypedDict):
    """The attributes of the cookie, the same when it is set and when it is deleted."""

    path: str
    secure: bool
    httponly: bool
    samesite: str


@dataclass(slots=True, frozen=True)
class Site:
    """The address of a console, as browsers see it.

    Attributes:
        url: the URL of the proxy; None: browsers use the console's own port.
        has_tls: the console's own port uses TLS.
    """

    url: ConsoleUrl | None = None
    has_tls: bool = False

    @property
    def prefix(self) -> str:
        """The path before those of the pages; empty if there is none."""
        return "" if self.url is None else self.url.prefix

    def link(self, path: str, **fields: Any) -> str:
        """Return the address of a page with those fields that are not empty."""
        given = {name: value for name, value in fields.items() if value not in ("", None)}
        return f"{self.prefix}{path}?{urlencode(given)}" if given else f"{self.prefix}{path}"

    def path(self, address: str) -> str | None:
        """Return an address without the prefix; None if it is not the console's."""
        rest = address.removeprefix(self.prefix)
        return rest if rest.startswith("/") and address.startswith(self.prefix) else None

    def origin(self, request: web.BaseRequest) -> str:
        """Return the origin of the console's pages, as the browser of a request writes it."""
        return f"{request.scheme}://{request.headers.get('Host', '')}" if self.url is None else self.url.origin

    def browser_address(self, request: web.BaseRequest) -> str:
        """Return the address that a request came from; behind a proxy, the proxy's and the one that it names."""
        peer, named = request.remote or "unknown", self._named_address(request)
        return peer if named is None else f"{peer} for {named}"

    def browser_network(self, request: web.BaseRequest) -> str:
        """Return the peer of a request, for limits: see `peer_network`. Behind a proxy, the one that it names."""
        return peer_network((self._named_address(request) or request.remote, 0))

    def _named_address(self, request: web.BaseRequest) -> str | None:
        """Return the address that a proxy names; None if there is no proxy, or it names none."""
        if self.url is None:
            return None
        # A browser can send such a header too. The proxy adds its own after it, or replaces it.
        named = ",".join(request.headers.getall("X-Forwarded-For", [])).rpartition(",")[2].strip()
        try:
            # The scope of an address, after its %, may be any text.
            return str(ipaddress.ip_address(named.partition("%")[0]))
        except ValueError:
            return None

    @property
    def cookie_name(self) -> str:
        """The name of the session's cookie. Browsers keep these prefixes for cookies with certain flags."""
        if not self.is_secure:
            return "foqs"
        return "__Secure-foqs" if self.prefix else "__Host-foqs"  # __Host- is for the path / only

    @property
    def cookie_flags(self) -> CookieFlags:
        """The attributes of the session's cookie."""
        return {"path": f"{self.prefix}/", "secure": self.is_secure, "httponly": True, "samesite": "Strict"}

    @property
    def is_secure(self) -> bool:
        """Whether browsers reach the console over TLS."""
        return self.has_tls if self.url is None else self.url.scheme == "https"
