"""The page of the audit: the changes that administrators made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from aiohttp import web

from foqs.console.page_request import PageRequest

ENTRIES: Final = 1_000


async def audit(page_request: PageRequest) -> web.StreamResponse:
    """Show the last changes at all hosts, or those of one namespace."""
    only = page_request.values.get("only") or None
    page = await page_request.client.audit(ENTRIES, only)
    return page_request.page("audit.html", "Audit", page=page, only=only)


AUDIT_PAGES: Final[Mapping[str, Callable[[PageRequest], Awaitable[web.StreamResponse]]]] = {"/audit": audit}
