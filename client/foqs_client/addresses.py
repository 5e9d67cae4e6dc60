"""Addresses of hosts: `foqs://host1:7411,host2`, or `foqss://` for TLS.

Knows nothing of connections.
"""

from __future__ import annotations

from typing import Final

from foqs_client.errors import InvalidArgument

SCHEME: Final = "foqs://"
SCHEME_TLS: Final = "foqss://"
PORT_DEFAULT: Final = 7411


def parse_addresses(url: str) -> list[tuple[str, int]]:
    """Return (host, port) of each address of a URL. The port is optional; an IPv6 host is in brackets.

    Raises:
        InvalidArgument: the URL is malformed.
    """
    if not url.startswith((SCHEME, SCHEME_TLS)):
        problem = f"{url!r} must begin with {SCHEME} or {SCHEME_TLS}, as in foqs://127.0.0.1:7411"
        raise InvalidArgument(problem, field="url")
    rest = url.partition("://")[2]
    return [_parse_address(part, url) for part in rest.rstrip("/").split(",")]


def is_tls_url(url: str) -> bool:
    """Return whether a URL asks for TLS."""
    return url.startswith(SCHEME_TLS)


def _parse_address(part: str, url: str) -> tuple[str, int]:
    host, colon, port = part.rpartition(":")
    if part.startswith("[") and (part.endswith("]") or host.endswith("]")):
        host, colon, port = (part, "", "") if part.endswith("]") else (host, colon, port)
        host = host[1:-1]
    elif not colon:
        host = part
    elif ":" in host:
        raise InvalidArgument(f"put the IPv6 address of {part!r} in brackets", field="url")
    if not host or any(character in host for character in "/?#@ "):
        raise InvalidArgument(
            f"{part!r} in {url!r} is not host or host:port; write foqs://host1:7411,host2:7411", field="url"
        )
    if not colon:
        return host, PORT_DEFAULT
    if not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536:
        raise InvalidArgument(
            f"the port of {part!r} is not a number from 1 to 65535; write it as in host1:7411", field="url"
        )
    return host, int(port)
