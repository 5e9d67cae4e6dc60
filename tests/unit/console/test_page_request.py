"""What a request of the console may name."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp.test_utils import make_mocked_request
from multidict import MultiDict

from foqs.access.authenticator import AuthenticatedPrincipal
from foqs.access.call_permissions import Principal
from foqs.console.page_request import PagePermissions, PageRequest
from foqs.console.site import Site
from foqs_contract.errors import NamespaceNotFound, PermissionDenied


def namespace(asked: str, names: list[str], *, is_admin: bool = False) -> str:
    """Return the namespace of a request."""
    permissions = PagePermissions(
        AuthenticatedPrincipal(Principal("ann", is_admin), b"digest"), lambda principal, name: ()
    )
    values = MultiDict({"namespace": asked} if asked else {})
    unused = cast(Any, None)
    return PageRequest(
        make_mocked_request("GET", "/"), permissions, values, unused, unused, names, unused, Site()
    ).namespace


def test_the_usual_namespace_is_the_default_or_the_first() -> None:
    assert namespace("", ["default", "mail"]) == namespace("", ["a", "default"]) == "default"
    assert namespace("", ["mail", "orders"]) == "mail"
    assert namespace("orders", ["mail", "orders"]) == "orders"
    assert namespace("", []) == namespace("default", []) == "default"


def test_a_namespace_without_a_permission_is_refused_before_there_is_a_client_for_it() -> None:
    with pytest.raises(PermissionDenied):
        namespace("secret", ["mail"])
    with pytest.raises(NamespaceNotFound):
        namespace("absent", ["mail"], is_admin=True)


def test_pages_share_a_client_and_a_form_is_sent_from_its_address() -> None:
    used: list[tuple[Any, ...]] = []

    def use(*key: Any) -> Any:
        used.append(key)
        return nullcontext("client")

    clients = cast(Any, SimpleNamespace(use=use))
    unused = cast(Any, None)
    transport = cast(Any, SimpleNamespace(get_extra_info=lambda name: ("10.0.0.1", 1), is_closing=lambda: False))
    for method in ("GET", "POST"):
        request = make_mocked_request(method, "/", transport=transport)
        permissions = PagePermissions(None, lambda principal, name: ())
        with PageRequest(
            request, permissions, MultiDict(), clients, unused, ["default"], unused, Site()
        ) as page_request:
            assert page_request.client is page_request.client
    assert used == [(None, "default", ""), (None, "default", "10.0.0.1")]
