"""Which requests the console refuses."""

from __future__ import annotations

import pytest

from foqs.console.requests import HEADERS, cross_site_refusal, host_refusal, stream_refusal

OWN = "https://queue.example:7413"


@pytest.mark.parametrize(
    ("headers", "is_refused"),
    [
        ({"Sec-Fetch-Site": "same-origin"}, False),
        ({"Sec-Fetch-Site": "same-site"}, True),
        ({"Sec-Fetch-Site": "cross-site"}, True),
        ({"Sec-Fetch-Site": "none"}, True),
        ({"Sec-Fetch-Site": "cross-site", "Origin": "https://queue.example:7413"}, True),
        ({"Origin": "https://queue.example:7413"}, False),
        ({"Origin": "http://queue.example:7413"}, True),
        ({"Origin": "https://queue.example"}, True),
        ({"Origin": "https://queue.example:7413.evil.example"}, True),
        ({"Origin": "null"}, True),
        ({}, True),
    ],
)
def test_only_own_pages_may_change_something(headers: dict[str, str], is_refused: bool) -> None:
    for method in ("POST", "DELETE"):
        assert (cross_site_refusal(method, headers, OWN) is not None) is is_refused
    for method in ("GET", "HEAD"):
        assert cross_site_refusal(method, headers, OWN) is None


@pytest.mark.parametrize("host", ["localhost", "localhost:7413", "127.0.0.1:7413", "[::1]:7413", "queue.localhost"])
def test_an_open_console_answers_to_this_machine(host: str) -> None:
    assert host_refusal({"Host": host}) is None


@pytest.mark.parametrize(
    "host", ["evil.example:7413", "localhost.evil.example", "", "127.0.0.1.evil.example", "[::1", "a:b:c"]
)
def test_an_open_console_answers_to_no_other_name(host: str) -> None:
    assert host_refusal({"Host": host}) is not None


def test_the_policy_allows_no_inline_script_and_no_frame() -> None:
    policy = HEADERS["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy


@pytest.mark.parametrize(
    ("headers", "is_refused"),
    [
        ({}, False),
        ({"Sec-Fetch-Site": "same-origin"}, False),
        ({"Sec-Fetch-Site": "none"}, False),
        ({"Sec-Fetch-Site": "same-site"}, True),
        ({"Sec-Fetch-Site": "cross-site"}, True),
    ],
)
def test_another_site_holds_no_stream_open(headers: dict[str, str], is_refused: bool) -> None:
    assert (stream_refusal(headers) is not None) is is_refused
