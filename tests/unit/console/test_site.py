"""Where browsers find the console: addresses, cookies, and who is behind a proxy."""

from __future__ import annotations

from typing import Any, cast

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from foqs.console.site import Site
from foqs.options.console_url import parse_console_url


def site(url: str, *, has_tls: bool = False) -> Site:
    return Site(parse_console_url(url), has_tls)


def request(peer: str = "127.0.0.1", **headers: str) -> web.Request:
    """Return a request with these headers; their names have _ for -."""
    transport = cast(Any, type("Transport", (), {"get_extra_info": lambda self, name: (peer, 1)})())
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return make_mocked_request("GET", "/", named, transport=transport)


def test_an_address_begins_with_the_prefix_and_a_path_has_none() -> None:
    for prefix, url in (("", ""), ("", "https://queue.example/"), ("/foqs", "https://tools.example/foqs/")):
        found = site(url)
        assert found.link("/") == f"{prefix}/"
        assert found.link("/topic", topic="a b", state="", cursor=None) == f"{prefix}/topic?topic=a+b"
        assert found.path(f"{prefix}/topic?topic=a") == "/topic?topic=a"


@pytest.mark.parametrize("address", ["/", "/topics", "/foqs", "/foqsx/topics", "/a/foqs/topics", "/Foqs/topics"])
def test_an_address_outside_of_the_prefix_is_not_the_consoles(address: str) -> None:
    assert site("https://tools.example/foqs/").path(address) is None


@pytest.mark.parametrize(
    ("url", "has_tls", "name", "path", "is_secure"),
    [
        ("", False, "foqs", "/", False),
        ("", True, "__Host-foqs", "/", True),
        ("https://queue.example/", False, "__Host-foqs", "/", True),
        ("https://tools.example/foqs/", False, "__Secure-foqs", "/foqs/", True),
        ("http://localhost/foqs/", True, "foqs", "/foqs/", False),
    ],
)
def test_the_cookie_is_as_narrow_as_the_site_allows(
    url: str, has_tls: bool, name: str, path: str, is_secure: bool
) -> None:
    found = site(url, has_tls=has_tls)
    flags = found.cookie_flags
    assert (found.cookie_name, flags["path"], flags["secure"]) == (name, path, is_secure)
    assert (flags["httponly"], flags["samesite"]) == (True, "Strict")


def test_the_own_origin_is_that_of_the_url_or_of_the_request() -> None:
    asked = request(Host="127.0.0.1:7413")
    assert site("").origin(asked) == "http://127.0.0.1:7413"
    assert site("https://tools.example/foqs/").origin(asked) == "https://tools.example"


@pytest.mark.parametrize(
    ("header", "address"),
    [
        ("203.0.113.7", "127.0.0.1 for 203.0.113.7"),
        ("10.0.0.1, 203.0.113.7", "127.0.0.1 for 203.0.113.7"),
        ("2001:db8::1", "127.0.0.1 for 2001:db8::1"),
        ("fe80::1%x principal=boss", "127.0.0.1 for fe80::1"),
        ("ann\r\nmail", "127.0.0.1"),
        ("203.0.113.7, ", "127.0.0.1"),
    ],
)
def test_behind_a_proxy_the_address_is_the_proxys_and_the_one_that_it_names(header: str, address: str) -> None:
    asked = request(X_Forwarded_For=header)
    assert site("https://tools.example/").browser_address(asked) == address
    assert site("").browser_address(asked) == "127.0.0.1"


def test_limits_of_peers_are_those_of_the_address_that_the_proxy_names() -> None:
    asked = request(X_Forwarded_For="2001:db8::7:1")
    assert site("https://tools.example/").browser_network(asked) == "2001:db8::"
    assert site("https://tools.example/").browser_network(request()) == "127.0.0.1"
    assert site("").browser_network(asked) == "127.0.0.1"
