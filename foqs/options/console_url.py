"""Where a console may listen, and the URL at which browsers find it behind a proxy.

Knows nothing of requests.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from foqs.options.auth_options import AuthOptions
from foqs.options.options import InvalidOption, ServerOptions, is_loopback

_URL: Final = re.compile(
    r"(?P<scheme>https?)://(?P<host>[a-z0-9_.-]+|\[[0-9a-f:.]+\])(?P<port>:[1-9][0-9]{0,4})?"
    r"(?P<prefix>(?:/(?!\.{1,2}(?:/|$))[a-z0-9._~-]+)*)/?",
    re.ASCII | re.IGNORECASE,
)
PORT_MAX: Final = 65_535
_USUAL_PORT: Final = {"http": ":80", "https": ":443"}


@dataclass(slots=True, frozen=True)
class ConsoleUrl:
    """The URL of a console behind a proxy.

    Attributes:
        host: a name or an address, without brackets.
        origin: the part before the path, as browsers write it: in small letters, without the scheme's usual port.
        prefix: the path before those of the pages; begins with a slash and does not end with one, or is empty.
    """

    scheme: str
    host: str
    origin: str
    prefix: str


def parse_console_url(text: str) -> ConsoleUrl | None:
    """Return the URL of `server.console_url`; None if it is empty. Raises InvalidOption."""
    if not text:
        return None
    match = _URL.fullmatch(text)
    if match is None or int((match["port"] or ":80")[1:]) > PORT_MAX:
        raise InvalidOption(
            f"{text!r} is not a URL that begins with http:// or https:// and has at most a port and a path",
            "write https://queue.example/ or https://tools.example/foqs/",
            "server.console_url",
        )
    scheme, host, port = match["scheme"].lower(), match["host"].lower(), match["port"] or ""
    origin = f"{scheme}://{host}{'' if port == _USUAL_PORT[scheme] else port}"
    return ConsoleUrl(scheme, host.strip("[]"), origin, match["prefix"])


def check_console(server: ServerOptions, auth: AuthOptions) -> None:
    """Refuse a console that others can reach without authentication or without TLS. Raises InvalidOption."""
    if not server.console:
        return
    if not is_loopback(server.console_host):
        _check_reachable(server, auth, "server.console_host", is_encrypted=bool(server.tls_cert_file))
    url = parse_console_url(server.console_url)
    if url is not None and not is_loopback(url.host):
        _check_reachable(server, auth, "server.console_url", is_encrypted=url.scheme == "https")


def _check_reachable(server: ServerOptions, auth: AuthOptions, key: str, *, is_encrypted: bool) -> None:
    # A console is for browsers, which any web page can use.
    if not auth.enabled:
        raise InvalidOption(
            "without authentication anybody who can connect could delete every item with a browser",
            "set auth.enabled, or let the console be reached by 127.0.0.1 or localhost only",
            key,
        )
    if not is_encrypted and not server.insecure_listen:
        raise InvalidOption(
            "tokens and cookies would cross the network readably",
            f"{_TLS_REMEDY[key]}, or accept it with server.insecure_listen=true",
            key,
        )


_TLS_REMEDY: Final = {
    "server.console_host": "set server.tls_cert_file, listen on 127.0.0.1",
    "server.console_url": "let the proxy use TLS and write https://",
}
