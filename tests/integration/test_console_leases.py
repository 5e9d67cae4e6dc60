"""The console extends the lease of an item, on a real host."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from foqs_client import Item
from tests.integration.test_console import OpenHost, calls, put
from tests.support.console import Browser

pytestmark = [pytest.mark.process]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenHost]:
    with OpenHost(tmp_path_factory.mktemp("leases") / "host") as found:
        found.start()
        yield found


@pytest.fixture
def browser(host: OpenHost) -> Browser:
    return Browser(host.console_port)


def test_a_lease_is_extended_and_its_consumer_keeps_the_item(host: OpenHost, browser: Browser) -> None:
    (item_id,) = put(host, Item("lasting", lease_ms=3_600_000))
    form = 'name="lease"'
    assert form not in browser.get("/item", id=item_id).body
    not_leased = browser.post("/item", id=item_id, action="extend", lease="5m")
    assert not_leased.status == 409
    assert "the item is not leased" in not_leased.text
    (delivery,) = calls(host, lambda client: client.dequeue({"lasting": 1}, lease_ms=600_000, wait_ms=5_000))
    assert form in browser.get("/item", id=item_id).body
    done = browser.post("/item", id=item_id, action="extend", lease="2h")
    assert "The lease is extended" in done.text
    left_ms = calls(host, lambda client: client.item(item_id)).lease_remaining_ms
    assert left_ms is not None
    assert 7_100_000 < left_ms <= 7_200_000
    assert "The lease is extended" in browser.post("/item", id=item_id, action="extend", lease="").text
    left_ms = calls(host, lambda client: client.item(item_id)).lease_remaining_ms
    assert left_ms is not None
    assert 7_000_000 < left_ms <= 7_200_000
    for wrong, text in (
        ("5 apples", "lease: '5 apples' is not a duration"),
        ("9999d", "lease_ms"),
        ("0", "lease_ms"),
    ):
        refused = browser.post("/item", id=item_id, action="extend", lease=wrong)
        assert refused.status == 400, refused.text
        assert text in refused.text
    (acked,) = calls(host, lambda client: client.ack([delivery]))
    assert acked.error is None
    assert browser.post("/item", id=item_id, action="extend", lease="5m").status == 404
