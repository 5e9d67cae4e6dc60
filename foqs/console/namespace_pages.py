"""The pages of namespaces: their limits, usage and grants."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from aiohttp import web

from foqs.console.visit import Visit
from foqs_client import InvalidArgument, Namespace

PERMISSIONS: Final = ("enqueue", "consume", "admin")
_SETTINGS: Final = tuple(field.name for field in dataclasses.fields(Namespace) if field.name not in ("name", "tier"))


async def namespaces(visit: Visit) -> web.StreamResponse:
    """Show the namespaces, or create one."""
    if visit.request.method == "POST":
        name = visit.require("name")
        await visit.client.create_namespace(Namespace(name))
        visit.see("/namespace", namespace=name, done="created_namespace")
    return visit.page("namespaces.html", "Namespaces")


async def namespace(visit: Visit) -> web.StreamResponse:
    """Show the settings, usage and grants of a namespace, or change them."""
    if visit.request.method == "POST":
        return await _change(visit)
    client, rights, name = visit.client, visit.rights, visit.namespace
    settings = await client.get_namespace()
    usage = await client.usage() if rights.may_administer(name) else None
    grants = await client.grants() if rights.may_administer(name) else []
    return visit.page(
        "namespace.html",
        f"Namespace {name}",
        settings={field: getattr(settings, field) for field in _SETTINGS},
        usage=usage,
        grants=grants,
        permissions=PERMISSIONS,
    )


async def _change(visit: Visit) -> web.StreamResponse:
    action = visit.text("action")
    if action == "update":
        settings = Namespace(visit.namespace, None, *(visit.number(field) for field in _SETTINGS))
        await visit.client.update_namespace(settings)
        visit.see("/namespace", done="updated_namespace")
    if action == "grant":
        chosen = [name for name in PERMISSIONS if visit.text(name) == "1"]
        await visit.client.set_grant(visit.require("principal"), chosen)
        visit.see("/namespace", done="granted")
    raise InvalidArgument(f"{action!r} is not an action of namespaces", field="action")


NAMESPACE_PAGES: Final[Mapping[str, Callable[[Visit], Awaitable[web.StreamResponse]]]] = {
    "/namespaces": namespaces,
    "/namespace": namespace,
}
