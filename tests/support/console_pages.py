"""Pages of the console drawn without a host: a page request whose client gives prepared answers."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from multidict import MultiDict

from foqs.console.page_request import PagePermissions, PageRequest
from foqs.console.server import _templates
from foqs.console.shared_reads import SharedReads
from foqs.console.site import Site
from foqs.console.static_files import StaticFiles
from tests.support.console import Answer


class AnsweringClient:
    """A client that gives a prepared answer to each call, or raises it; a function makes it from the arguments.

    Attributes:
        calls: (name, arguments, options) of each call.
    """

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self.answers = dict(answers)
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any, **options: Any) -> Any:
            self.calls.append((name, args, options))
            answer = self.answers[name]
            if isinstance(answer, Exception):
                raise answer
            return answer(*args, **options) if callable(answer) else answer

        return call


def page_request_of(
    client: AnsweringClient,
    path: str = "/",
    *,
    form: Mapping[str, str] | None = None,
    host_name: str = "host1",
    now_s: float = 0.0,
    figures: object = None,
) -> PageRequest:
    """Return the page request of a page, or of a form, at a console without authentication. The namespace is `default`."""
    site = Site()
    settings = cast(Any, SimpleNamespace(host_name=host_name, is_cluster=True))
    templates = _templates(settings, site, StaticFiles())

    def render(template: str, **values: Any) -> web.Response:
        text = templates.get_template(template).render(**{"done": None, "is_open": True, **values})
        return web.Response(text=text, content_type="text/html")

    request = make_mocked_request("GET" if form is None else "POST", path)
    values: MultiDict[str] = MultiDict(request.query if form is None else form)
    clients = cast(Any, SimpleNamespace(use=lambda *_: nullcontext(client)))
    shared = cast(Any, SimpleNamespace(counts=SharedReads(60.0), now_s=lambda: now_s, figures=figures))
    return PageRequest(
        request, PagePermissions(None, lambda principal, name: ()), values, clients, shared, ["default"], render, site
    )


def answer_of(response: web.StreamResponse) -> Answer:
    """Return a page as a browser gets it."""
    assert isinstance(response, web.Response)
    return Answer(response.status, cast(Any, response.headers), response.text or "")
