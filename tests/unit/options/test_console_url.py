"""The URL of a console behind a proxy."""

from __future__ import annotations

import pytest

from foqs.options.config import load
from foqs.options.console_url import parse_console_url
from foqs.options.options import InvalidOption


@pytest.mark.parametrize(
    ("text", "host", "origin", "prefix"),
    [
        ("https://tools.example/foqs/", "tools.example", "https://tools.example", "/foqs"),
        ("https://tools.example/foqs", "tools.example", "https://tools.example", "/foqs"),
        ("https://tools.example/a/b-c_d.e/", "tools.example", "https://tools.example", "/a/b-c_d.e"),
        ("https://Queue.Example", "queue.example", "https://queue.example", ""),
        ("HTTPS://queue.example:443/Foqs", "queue.example", "https://queue.example", "/Foqs"),
        ("https://queue.example:8443/", "queue.example", "https://queue.example:8443", ""),
        ("http://localhost:80/", "localhost", "http://localhost", ""),
        ("http://[::1]:443/x", "::1", "http://[::1]:443", "/x"),
    ],
)
def test_a_url_has_the_origin_that_browsers_send(text: str, host: str, origin: str, prefix: str) -> None:
    found = parse_console_url(text)
    assert found is not None
    assert (found.host, found.origin, found.prefix) == (host, origin, prefix)


@pytest.mark.parametrize(
    "text",
    [
        "queue.example",
        "/foqs/",
        "ftp://queue.example/",
        "https://",
        "https:///foqs/",
        "https://ann@queue.example/",
        "https://queue.example:/",
        "https://queue.example:x/",
        "https://queue.example:65536/",
        "https://queue.example/a//b",
        "https://queue.example/a//",
        "https://queue.example/../a",
        "https://queue.example/a/./b",
        "https://queue.example/a/..",
        "https://queue.example/a b",
        "https://queue.example/{a}",
        "https://queue.example/a%20b",
        "https://queue.example/a?b=c",
        "https://queue.example/#a",
        "https://queue.example/a\n",
        " https://queue.example/",
    ],
)
def test_what_is_no_url_of_a_console_is_refused(text: str) -> None:
    with pytest.raises(InvalidOption, match="is not a URL"):
        parse_console_url(text)


def test_an_open_console_may_be_behind_a_proxy_on_this_machine() -> None:
    url = "https://localhost:8443/foqs/"
    assert load(None, {}, {"server.console": True, "server.console_url": url}).server.console_url == url
