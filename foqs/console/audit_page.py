"""The page of what administrators changed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from aiohttp import web

from foqs.console.visit import Visit

ENTRIES: Final = 1_000


async def audit(visit: Visit) -> web.StreamResponse:
    """Show the last changes at all hosts, or those of one namespace."""
    only = visit.values.get("only") or None
    page = await visit.client.audit(ENTRIES, only)
    return visit.page("audit.html", "Audit", page=page, only=only)


AUDIT_PAGES: Final[Mapping[str, Callable[[Visit], Awaitable[web.StreamResponse]]]] = {"/audit": audit}
