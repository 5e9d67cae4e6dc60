"""The distance between regions, for tests.

Always true: neither a test that uses it nor its end prints an error of asyncio.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from foqs.dev.region_network import RegionNetwork
from foqs.dev.server_process import ServerNotAvailable


@pytest.fixture
def network(caplog: pytest.LogCaptureFixture) -> Iterator[RegionNetwork]:
    """Three regions. Skips the test where the kernel allows no namespaces: to a user, or in a container."""
    try:
        made = RegionNetwork(["r1", "r2", "r3"])
    except ServerNotAvailable as refusal:
        pytest.skip(str(refusal))
    with closing(made) as found:
        yield found
    records = [*caplog.get_records("call"), *caplog.get_records("teardown")]
    assert [each.getMessage() for each in records if each.name == "asyncio"] == []
