"""Which addresses are one peer."""

from __future__ import annotations

import pytest

from foqs.runtime.peer_network import peer_network


@pytest.mark.parametrize(
    ("peer", "network"),
    [
        (("10.0.0.1", 5), "10.0.0.1"),
        (("2001:db8::1", 5, 0, 0), "2001:db8::"),
        (("2001:db8::ffff:0:0:1", 6, 0, 0), "2001:db8::"),
        (("2001:db8:0:1::1", 6, 0, 0), "2001:db8:0:1::"),
        (("fe80::1%eth0", 6, 0, 2), "fe80::"),
        (("::ffff:10.0.0.1", 5, 0, 0), "10.0.0.1"),
        ("", ""),
        (None, ""),
    ],
)
def test_a_peer_is_an_address_or_a_network_of_ipv6(peer: object, network: str) -> None:
    assert peer_network(peer) == network
