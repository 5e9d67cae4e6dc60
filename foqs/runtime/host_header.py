"""Checks the Host header of HTTP requests: the name by which a browser addressed this host.

A page of another site reaches a port of this machine by a name of its own that it points here. The browser
then lets it read the answers, because they come from the name of the page.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit


def is_localhost_or_address(host: str) -> bool:
    """Return whether a Host header names `localhost` or an address. Nobody else can own such a name."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        if name == "localhost" or name.endswith(".localhost"):
            return True
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
