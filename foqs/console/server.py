"""The console of a host: routes, logins, refusals, and errors as pages.

Always true: every answer to a readable request has the headers of `requests.HEADERS`; a request that changes
something comes from the console's own pages; without a session only the login and the
static files are served. Knows nothing of the pages' contents.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, TypeAlias

import jinja2
from aiohttp import web
from multidict import MultiMapping

from foqs.access.authenticator import AuthenticatedPrincipal, Authenticator
from foqs.access.call_permissions import PermissionLookup
from foqs.console import figure_formats, formats
from foqs.console.audit_page import AUDIT_PAGES
from foqs.console.bulk_pages import BULK_PAGES
from foqs.console.cluster_pages import CLUSTER_PAGES, CLUSTER_PARTS
from foqs.console.console_server import ConsoleServer
from foqs.console.failing_logins import FailingLogins
from foqs.console.group_pages import GROUP_PAGES, GROUP_PARTS
from foqs.console.item_pages import ITEM_PAGES
from foqs.console.live import STREAM_PATH, LiveHub, LivePart
from foqs.console.local_clients import Accept, LocalClients
from foqs.console.namespace_pages import NAMESPACE_PAGES
from foqs.console.overview_page import OVERVIEW_PAGES, OVERVIEW_PARTS
from foqs.console.page_request import PagePermissions, PageRequest, done_sentence
from foqs.console.requests import HEADERS, cross_site_refusal, host_refusal, stream_refusal
from foqs.console.session_secret import SessionSecret
from foqs.console.sessions import issue_cookie, read_cookie
from foqs.console.shared_figures import Figures, SharedFigures
from foqs.console.site import Site
from foqs.console.static_files import StaticFiles
from foqs.console.topic_pages import TOPIC_PAGES, TOPIC_PARTS
from foqs.options.console_url import ConsoleUrl
from foqs.rpc.rpc_limits import RpcLimits
from foqs.runtime.http_connections import parser_log
from foqs_client import FoqsError

log = logging.getLogger(__name__)

SESSION_S: Final = 12 * 3600
BODY_BYTES_MAX: Final = 65_536
HEADER_BYTES_MAX: Final = 8_192
REQUEST_TIMEOUT_S: Final = 30.0
IDLE_S: Final = 120.0
"""A connection without requests is closed after this time."""
STREAM_WRITE_TIMEOUT_S: Final = 30.0
"""A browser that reads nothing for this time loses its event stream."""
STATIC_AGE_S: Final = 365 * 86_400
COMPRESSED_BYTES_MIN: Final = 1_400
"""The size from which an answer is compressed. A smaller one fits into one packet as it is."""
_NOT_GATHERED: Final = {"X-Accel-Buffering": "no"}
"""The header with which a proxy such as nginx sends each event at once."""
Serve: TypeAlias = Callable[[PageRequest], Awaitable[web.StreamResponse]]

_PAGES: Final[Mapping[str, Serve]] = {
    **OVERVIEW_PAGES,
    **TOPIC_PAGES,
    **GROUP_PAGES,
    **ITEM_PAGES,
    **BULK_PAGES,
    **NAMESPACE_PAGES,
    **CLUSTER_PAGES,
    **AUDIT_PAGES,
}
"""The pages by path. A page serves both GET and POST if it has a form."""
_PARTS: Final[Mapping[str, LivePart]] = {**OVERVIEW_PARTS, **TOPIC_PARTS, **GROUP_PARTS, **CLUSTER_PARTS}
"""The parts that are kept up to date, by the path of their page."""
_STATUS: Final[Mapping[str, int]] = {
    "INVALID_ARGUMENT": 400,
    "LIMIT_EXCEEDED": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "NAMESPACE_NOT_FOUND": 404,
    "STALE_LEASE": 409,
    "RATE_LIMITED": 429,
    "OVERLOADED": 503,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}
"""The status of a page that shows an error, by the error's code; others are 500."""


@dataclass(slots=True, frozen=True)
class ConsoleSettings:
    """The properties of a host that its console uses.

    Attributes:
        host_name: the name of the host, which each page shows.
        is_cluster: the host has peers to hand shards to.
        authenticator: checks logins; None: everybody may do everything.
        secret: the secret of the sessions.
        permissions_of: the permissions of the principals.
        namespaces: returns the names of all namespaces, in no order.
        tls: the TLS context for https; None: http.
        url: the URL of a proxy in front of the console; None: browsers use its own port.
        limits: the limits of connections.
        on_handshake_failed: called once per failed TLS handshake.
        now_s: returns seconds since 1970-01-01 UTC.
        figures: the figures of this host that the pages show without a call.
    """

    host_name: str
    is_cluster: bool
    authenticator: Authenticator | None
    secret: SessionSecret
    permissions_of: PermissionLookup
    namespaces: Callable[[], Collection[str]]
    tls: ssl.SSLContext | None
    url: ConsoleUrl | None
    limits: RpcLimits
    on_handshake_failed: Callable[[], None]
    now_s: Callable[[], float]
    figures: Figures


class Console:
    """The console of one host.

    Args:
        accept: see `LocalClients`.
    """

    def __init__(self, settings: ConsoleSettings, accept: Accept) -> None:
        self._settings = settings
        self._clients = LocalClients(accept)
        self._site = Site(settings.url, has_tls=settings.tls is not None)
        self._static = StaticFiles()
        self._templates = _templates(settings, self._site, self._static)
        self._shared = SharedFigures(settings.figures, settings.now_s, time.thread_time)
        self._hub = LiveHub(self._shared.totals, self._draw, time.thread_time)
        self._tasks: list[asyncio.Task[None]] = []
        authenticator = settings.authenticator
        self._failing_logins = FailingLogins(0.0 if authenticator is None else authenticator.limits.failure_delay_s)
        self._runner: web.AppRunner | None = None
        self._listener: ConsoleServer

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port: a free one if `port` is 0.

        Raises:
            OSError: the address cannot be bound.
        """
        if self._settings.authenticator is not None:
            await self._settings.secret.refresh()
        app = web.Application(client_max_size=BODY_BYTES_MAX, middlewares=[self._guard])
        prefix = self._site.prefix
        app.router.add_get(f"{prefix}/static/{{name}}", self._static_file)
        app.router.add_get(f"{prefix}{STREAM_PATH}", self._stream, allow_head=False)
        app.router.add_get(f"{prefix}/login", self._login_form)
        app.router.add_post(f"{prefix}/login", self._log_in)
        app.router.add_post(f"{prefix}/logout", self._log_out)
        for path, serve in _PAGES.items():
            app.router.add_route("*", f"{prefix}{path}", self._handler(serve))
        runner = web.AppRunner(
            app,
            access_log=None,
            logger=parser_log(log, lambda peer, text: self._listener.warn(peer, text)),
            max_line_size=HEADER_BYTES_MAX,
            max_field_size=HEADER_BYTES_MAX,
            keepalive_timeout=IDLE_S,
            shutdown_timeout=1.0,
        )
        await runner.setup()
        assert runner.server is not None
        settings = self._settings
        self._listener = ConsoleServer(runner.server, settings.limits, settings.tls, settings.on_handshake_failed)
        try:
            bound_port = await self._listener.listen(host, port)
        except OSError:
            await runner.cleanup()
            raise
        self._runner = runner
        loop = asyncio.get_running_loop()
        self._tasks.append(loop.create_task(self._shared.run()))
        if settings.authenticator is not None:
            self._tasks.append(loop.create_task(settings.secret.run()))
        return bound_port

    def use_certificate(self, tls: ssl.SSLContext) -> None:
        """Use another certificate for future TLS handshakes."""
        self._listener.use_certificate(tls)

    async def stop(self) -> None:
        """Stop listening, and close the connections and the clients. May be called twice."""
        await self._hub.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._runner is not None:
            runner, self._runner = self._runner, None
            self._listener.close()
            await runner.cleanup()
            self._listener.connections.abort()
        await self._shared.close()
        await self._clients.close()

    # ---------------------------------------------------------------- requests

    @web.middleware
    async def _guard(self, request: web.Request, handler: Callable[[web.Request], Awaitable[Any]]) -> Any:
        """Refuse what no page of the console sends, and set the headers of every answer."""
        with self._listener.connections.serving(request):
            return await self._answer(request, handler)

    async def _answer(self, request: web.Request, handler: Callable[[web.Request], Awaitable[Any]]) -> Any:
        try:
            async with asyncio.timeout(None if self._site.path(request.path) == STREAM_PATH else REQUEST_TIMEOUT_S):
                response = self._refuse(request) or await handler(request)
        except web.HTTPException as answer:
            response = answer if answer.status < 400 else self._error_page(request, answer.status, answer.reason)
        except TimeoutError:
            unknown = "" if request.method in ("GET", "HEAD") else " Its outcome is unknown."
            response = self._error_page(request, 408, f"The request took too long.{unknown}")
        except FoqsError as error:
            response = self._error_page(request, _STATUS.get(error.code, 500), _sentence(error))
        except OverflowError:  # from the encoding of a call, before anything of it was sent
            response = self._error_page(request, 400, "A number is larger than its field allows.")
        except Exception:
            log.exception("the page %s failed with an unexpected error", request.path)
            response = self._error_page(request, 500, "The page failed; the host's log says why.")
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        if isinstance(response, web.HTTPException):
            raise response
        if isinstance(response, web.Response):
            _compress(request, response)
        return response

    def _refuse(self, request: web.Request) -> web.Response | None:
        if not request.raw_path.isascii():
            return self._error_page(request, 400, "The address is not percent-encoded.")
        if self._site.path(request.path) is None:
            return self._misplaced(request)
        refusal = cross_site_refusal(request.method, request.headers, self._site.origin(request))
        if refusal is None and self._settings.authenticator is None:
            refusal = host_refusal(request.headers)
        return None if refusal is None else self._error_page(request, 403, refusal)

    def _misplaced(self, request: web.Request) -> web.Response:
        """Answer a request for an address outside of the console's prefix."""
        prefix = self._site.prefix
        if request.path == prefix:
            raise web.HTTPFound(self._site.link("/"))
        text = "The console has no such page."
        if prefix:
            text = f"The console is at {prefix}/, as server.console_url says. A proxy in front of it passes paths on as they are."
        return self._error_page(request, 404, text)

    def _handler(self, serve: Serve) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            if request.method not in ("GET", "HEAD", "POST"):
                raise web.HTTPMethodNotAllowed(request.method, ["GET", "HEAD", "POST"])
            permissions = self._permissions(request)
            if permissions is None:
                asked = (self._site.path(request.path_qs) or "") if request.method == "GET" else ""
                raise web.HTTPSeeOther(self._site.link("/login", next=asked))
            values: MultiMapping[Any] = request.query if request.method != "POST" else await _form(request)
            with self._page_request(request, permissions, values) as page_request:
                return await serve(page_request)

        return handle

    def _page_request(
        self, request: web.Request, permissions: PagePermissions, values: MultiMapping[Any]
    ) -> PageRequest:
        names = sorted(name for name in self._settings.namespaces() if permissions.may_see(name))
        return PageRequest(request, permissions, values, self._clients, self._shared, names, self._render, self._site)

    def _permissions(self, request: web.Request) -> PagePermissions | None:
        """Return the permissions of the request's principal; None if nobody is logged in. Otherwise the request counts as proved."""
        settings = self._settings
        authenticated = None
        if settings.authenticator is not None:
            cookie, secret = request.cookies.get(self._site.cookie_name, ""), settings.secret.value
            if not cookie or secret is None:
                return None
            authenticated = read_cookie(cookie, settings.authenticator, settings.now_s(), secret)
            if authenticated is None:
                return None
        self._listener.connections.prove(request)
        return PagePermissions(authenticated, settings.permissions_of)

    # ----------------------------------------------------------------- streams

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        """Send what changes on an open page, until the browser leaves or the session is over."""
        refusal = stream_refusal(request.headers)
        if refusal is not None:
            return self._error_page(request, 403, refusal)
        part = _PARTS.get(request.query.get("page", ""))
        if part is None:
            raise web.HTTPNotFound
        self._listener.connections.need_peer(request)
        permissions = self._permissions(request)
        if permissions is None:
            return self._error_page(request, 401, "The session is over. Log in again.")
        stream = self._hub.open(part, lambda: self._page_request_of_stream(request), permissions.principal_name)
        if stream is None:
            return self._error_page(request, 503, "Too many pages are open at this host.")
        response = web.StreamResponse(
            headers={**HEADERS, "Content-Type": "text/event-stream; charset=utf-8", **_NOT_GATHERED}
        )
        try:
            await response.prepare(request)
            await response.write(b"retry: 5000\n\n")  # the head leaves with it
            async for chunk in stream.chunks():
                async with asyncio.timeout(STREAM_WRITE_TIMEOUT_S):
                    await response.write(chunk)
        except (ConnectionError, TimeoutError):
            if request.transport is not None:
                request.transport.abort()
        finally:
            self._hub.drop(stream)
        return response

    def _page_request_of_stream(self, request: web.Request) -> PageRequest | None:
        """Return the page request of an open page with the permissions of now; None if the session is over or the browser has left.

        Raises:
            NamespaceNotFound, PermissionDenied: the page is about another namespace.
        """
        permissions = self._permissions(request)
        if permissions is None or request.transport is None or request.transport.is_closing():
            return None
        # Only the namespace of the page is of interest: there may be thousands, and this runs once a second.
        name = request.query.get("namespace", "")
        names = [name] if name in self._settings.namespaces() and permissions.may_see(name) else []
        return PageRequest(
            request, permissions, request.query, self._clients, self._shared, names, self._render, self._site
        )

    # ------------------------------------------------------------------ logins

    async def _login_form(self, request: web.Request) -> web.Response:
        return self._render("login.html", title="Log in", next=_own_path(request.query.get("next", "")))

    async def _log_in(self, request: web.Request) -> web.StreamResponse:
        form = await _form(request)
        path = _own_path(str(form.get("next", "")))
        authenticator = self._settings.authenticator
        if authenticator is None:
            raise web.HTTPSeeOther(self._site.link(path))
        secret = self._settings.secret.value
        if secret is None:
            return self._error_page(request, 503, "The secret of the sessions cannot be read; the host's log says why.")
        if not self._failing_logins.may_log_in(self._site.browser_network(request)):
            return self._error_page(
                request, 429, "Too many logins from your address fail; wait a second and try again."
            )
        authenticated = authenticator.authenticate_token(str(form.get("token", "")).strip().encode())
        if authenticated is None:
            response = await self._refuse_login(request, authenticator, path)
            response.force_close()  # the next guess costs a connection
            return response
        authenticator.observer.authenticated(authenticated.principal.name)
        raise self._with_cookie(web.HTTPSeeOther(self._site.link(path)), authenticated, secret)

    async def _refuse_login(self, request: web.Request, authenticator: Authenticator, path: str) -> web.Response:
        """Return the answer to a wrong token, after a delay, so that guessing takes long."""
        authenticator.observer.authentication_failed()
        self._listener.warn(self._site.browser_address(request), "a login with a wrong token")
        await self._failing_logins.delay(self._site.browser_network(request))
        problem = "This token belongs to no principal."
        return self._render("login.html", status=403, title="Log in", next=path, problem=problem)

    def _with_cookie(
        self, response: web.HTTPException, authenticated: AuthenticatedPrincipal, secret: bytes
    ) -> web.HTTPException:
        ends_at_s = int(self._settings.now_s()) + SESSION_S
        cookie = issue_cookie(authenticated, ends_at_s, secret)
        response.set_cookie(self._site.cookie_name, cookie, max_age=SESSION_S, **self._site.cookie_flags)
        return response

    async def _log_out(self, request: web.Request) -> web.StreamResponse:
        response = web.HTTPSeeOther(self._site.link("/login"))
        response.del_cookie(self._site.cookie_name, **self._site.cookie_flags)
        raise response

    # ----------------------------------------------------------------- answers

    async def _static_file(self, request: web.Request) -> web.Response:
        found = self._static.get(request.match_info["name"])
        if found is None:
            raise web.HTTPNotFound
        response = web.Response(body=found.body, content_type=found.content_type, charset="utf-8")
        if request.query.get("v") == found.version:
            response.headers["Cache-Control"] = f"public, max-age={STATIC_AGE_S}, immutable"
        return response

    def _error_page(self, request: web.Request, status: int, text: str) -> web.Response:
        return self._render("error.html", status=status, title=HTTPStatus(status).phrase, text=text)

    def _render(
        self, template: str, *, status: int = 200, page_request: PageRequest | None = None, **values: Any
    ) -> web.Response:
        done = (
            None
            if page_request is None or page_request.request.method == "POST"
            else done_sentence(page_request.request.query)
        )
        text = self._templates.get_template(template).render(
            page_request=page_request, done=done, is_open=self._settings.authenticator is None, **values
        )
        return web.Response(text=text, status=status, content_type="text/html")

    def _draw(self, template: str, page_request: PageRequest, values: Mapping[str, Any]) -> str:
        """Draw a part of a page, and return its HTML."""
        return self._templates.get_template(template).render(page_request=page_request, **values)


def _compress(request: web.Request, response: web.Response) -> None:
    """Have a large page or file sent with gzip, if the browser accepts it."""
    if isinstance(response.body, bytes) and len(response.body) >= COMPRESSED_BYTES_MIN:
        response.headers["Vary"] = "Accept-Encoding"
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            response.enable_compression(web.ContentCoding.gzip)


async def _form(request: web.Request) -> MultiMapping[Any]:
    """Return the fields of a form. Raises `HTTPException` for a body that no form of the console sends."""
    # No other charset: some of Python's take seconds for 64 KiB.
    if request.content_type != "application/x-www-form-urlencoded" or (request.charset or "utf-8").lower() != "utf-8":
        raise web.HTTPUnsupportedMediaType(reason="This is not a form of the console. Open the page and send its form.")
    try:
        return await request.post()
    except UnicodeDecodeError:
        raise web.HTTPBadRequest(reason="The form is not UTF-8. Open the page and send its form.") from None
    except (web.RequestPayloadError, ConnectionError):
        raise web.HTTPBadRequest(reason="The form is not complete. Send it again.") from None


def _sentence(error: FoqsError) -> str:
    return f"{error.field}: {error.message}" if error.field else error.message


def _templates(settings: ConsoleSettings, site: Site, static: StaticFiles) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("foqs.console"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(
        link=site.link,
        static=lambda name: site.link(f"/static/{name}", v=static.version(name)),
        host_name=settings.host_name,
        is_cluster=settings.is_cluster,
    )
    environment.filters.update({**formats.FILTERS, **figure_formats.FILTERS})
    return environment


def _own_path(text: str) -> str:
    """Return the path of a page of the console, for a redirect after the login: never another site."""
    path = text.partition("?")[0]
    return text if path in _PAGES else "/"
