"""The network of a peer: connections of one network count as one peer in limits before authentication."""

from __future__ import annotations

import ipaddress
from typing import Final

_IPV6_HOST_BITS: Final = 64
"""The number of bits of an IPv6 address within its network: a host with one IPv6 address usually has its whole /64."""


def peer_network(peer: object) -> str:
    """Return the network of a peer, given its address as asyncio has it: the IPv4 address, or the /64 of the IPv6 address.

    Peers without such an address share the empty text.
    """
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
