"""The pages of namespaces: their limits, usage and grants."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from aiohttp import web

from foqs.console.page_request import PageRequest
from foqs_client import InvalidArgument, Namespace

PERMISSIONS: Final = ("enqueue", "consume", "admin")
_SETTINGS: Final = tuple(field.name for field in dataclasses.fields(Namespace) if field.name not in ("name", "tier"))


async def namespaces(page_request: PageRequest) -> web.StreamResponse:
    """Show the namespaces, or create one."""
    if page_request.request.method == "POST":
        name = page_request.require("name")
        await page_request.client.create_namespace(Namespace(name))
        page_request.see("/namespace", namespace=name, done="created_namespace")
    return page_request.page("namespaces.html", "Namespaces")


async def namespace(page_request: PageRequest) -> web.StreamResponse:
    """Show the settings, usage and grants of a namespace, or change them."""
    if page_request.request.method == "POST":
        return await _change(page_request)
    client, permissions, name = page_request.client, page_request.permissions, page_request.namespace
    settings = await client.get_namespace()
    usage = await client.usage() if permissions.may_administer(name) else None
    grants = await client.grants() if permissions.may_administer(name) else []
    return page_request.page(
        "namespace.html",
        f"Namespace {name}",
        settings={field: getattr(settings, field) for field in _SETTINGS},
        usage=usage,
        grants=grants,
        permissions=PERMISSIONS,
    )


async def _change(page_request: PageRequest) -> web.StreamResponse:
    action = page_request.text("action")
    if action == "update":
        settings = Namespace(page_request.namespace, None, *(page_request.number(field) for field in _SETTINGS))
        await page_request.client.update_namespace(settings)
        page_request.see("/namespace", done="updated_namespace")
    if action == "grant":
        chosen = [name for name in PERMISSIONS if page_request.text(name) == "1"]
        await page_request.client.set_grant(page_request.require("principal"), chosen)
        page_request.see("/namespace", done="granted")
    raise InvalidArgument(f"{action!r} is not an action of namespaces; use update or grant", field="action")


NAMESPACE_PAGES: Final[Mapping[str, Callable[[PageRequest], Awaitable[web.StreamResponse]]]] = {
    "/namespaces": namespaces,
    "/namespace": namespace,
}
