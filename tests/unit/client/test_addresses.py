"""Tests the parsing of a client's URL."""

from __future__ import annotations

import pytest

from foqs_client import InvalidArgument
from foqs_client.addresses import parse_addresses


@pytest.mark.parametrize(
    ("url", "addresses"),
    [
        ("foqs://127.0.0.1:7411", [("127.0.0.1", 7411)]),
        ("foqs://queue", [("queue", 7411)]),
        ("foqs://queue/", [("queue", 7411)]),
        ("foqs://a:1,b,c:65535", [("a", 1), ("b", 7411), ("c", 65535)]),
        ("foqs://[::1]:5,[::2]", [("::1", 5), ("::2", 7411)]),
    ],
)
def test_addresses_are_parsed_in_order(url: str, addresses: list[tuple[str, int]]) -> None:
    assert parse_addresses(url) == addresses


@pytest.mark.parametrize(
    "url",
    ["", "queue:7411", "http://queue", "foqs://", "foqs://a,", "foqs://a:", "foqs://a:x", "foqs://a:0", "foqs://a:70000",
     "foqs://::1", "foqs://user@a", "foqs://a/b", "foqs://:5", "foqs://[]:5", "foqs://a:-1", "foqs://a:²"],
)  # fmt: skip
def test_malformed_address_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_addresses(url)
    assert caught.value.field == "url"
