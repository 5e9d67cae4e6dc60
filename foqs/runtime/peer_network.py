"""Which connections are of one peer, for limits of peers that nobody has authenticated."""

from __future__ import annotations

import ipaddress
from typing import Final

_IPV6_HOST_BITS: Final = 64
"""A host with one IPv6 address usually has its whole /64."""


def peer_network(peer: object) -> str:
    """Return the address of a peer, as asyncio has it; of IPv6 its network. Others are one peer."""
    address = peer[0] if isinstance(peer, tuple) and peer else ""
    try:
        found = ipaddress.ip_address(str(address).partition("%")[0])
    except ValueError:
        return ""
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Address(int(found) >> _IPV6_HOST_BITS << _IPV6_HOST_BITS))
