"""Tests of the limits of connections."""

from __future__ import annotations

import pytest

from foqs.options.rpc_options import CallOptions, RpcOptions
from foqs.rpc.rpc_limits import RpcConstants, RpcLimits
from tests.support.builders import changed

MIB = 1 << 20


@pytest.mark.parametrize(("in_flight_mib", "delivery_mib"), [(16, 1), (64, 16), (256, 48), (1_024, 16)])
def test_a_connection_may_leave_two_of_the_longest_replies_unread(in_flight_mib: int, delivery_mib: int) -> None:
    calls = changed(CallOptions(), delivery_bytes_max=delivery_mib * MIB)
    limits = RpcLimits.of(changed(RpcOptions(), in_flight_bytes_max=in_flight_mib * MIB), calls, RpcConstants())
    assert limits.write_buffer_bytes_max >= 2 * calls.reply_bytes_max
