"""The HTTP server of a host: liveness, readiness, metrics, pages for programs, and where the console is.

Always true: /livez answers as long as the event loop runs; /readyz is 200 only
while every shard is served; no request changes anything; on loopback no page of
another site can read an answer. Knows nothing of shards; it calls the functions
that it was given.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Final, Protocol, TypeAlias

from aiohttp import web

from foqs.options.options import is_loopback
from foqs.runtime.host_header import is_localhost_or_address
from foqs.runtime.http_connections import HttpConnections, parser_log
from foqs.telemetry.metrics import CONTENT_TYPE

log = logging.getLogger(__name__)

HEADER_BYTES_MAX: Final = 4_096
CONNECTIONS_MAX: Final = 500
"""The most connections: more than probes and scrapers need, and few enough for the host's file descriptors."""
STALL_TIMEOUT_S: Final = 30.0
"""A peer that sends no request, or does not read its answer, is disconnected after this time."""
UNREAD_BYTES_MAX: Final = 64 << 20
"""The maximum number of bytes of answers that peers leave unread; a page of metrics has a few MiB at most."""
IDLE_S: Final = 300.0
"""A connection without further requests is closed after this time."""

_FOREIGN_HOST: Final = "This server answers only requests for localhost or an address; use one of these in the URL.\n"

AnswerPage: TypeAlias = Callable[[Mapping[str, str], str | None], Awaitable[tuple[int, Mapping[str, Any]]]]
"""Returns (status, JSON object) for the parameters of a request and its Authorization header."""


class RenderedMetrics(Protocol):
    """Metrics that can be shown."""

    def render(self) -> Iterator[bytes]:
        """Yield the metrics in Prometheus' text format, in parts."""
        ...


class HttpServer:
    """Serves /livez, /readyz, /metrics and pages of JSON, and names them at /.

    Args:
        metrics: the metrics for /metrics.
        unready_reasons: returns why the host is not ready, by shard or part; empty means ready.
        console: returns where the console is, in one sentence.
    """

    def __init__(
        self,
        metrics: RenderedMetrics,
        unready_reasons: Callable[[], Mapping[str, str]],
        console: Callable[[], str] = lambda: "There is no console here.",
    ) -> None:
        self._console = console
        self._metrics = metrics
        self._unready_reasons = unready_reasons
        self._pages: dict[str, AnswerPage] = {}
        self._runner: web.AppRunner | None = None
        self._is_on_loopback = True
        self._connections: HttpConnections
        self._listening: asyncio.Server

    def add_page(self, path: str, answer: AnswerPage) -> None:
        """Serve a page of JSON under this path from the next start on."""
        self._pages[path] = answer

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port: a free one if `port` is 0.

        Raises:
            OSError: the address cannot be bound.
        """
        self._is_on_loopback = is_loopback(host)
        app = web.Application(client_max_size=HEADER_BYTES_MAX, middlewares=[self._guard])
        app.router.add_get("/", self._index)
        app.router.add_get("/livez", self._livez)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics_page)
        for path, answer in self._pages.items():
            app.router.add_get(path, _json_handler(answer))
        runner = web.AppRunner(
            app,
            access_log=None,
            logger=parser_log(log, _note),
            max_line_size=HEADER_BYTES_MAX,
            max_field_size=HEADER_BYTES_MAX,
            keepalive_timeout=IDLE_S,
            shutdown_timeout=1.0,
        )
        await runner.setup()
        assert runner.server is not None
        self._connections = HttpConnections(runner.server, CONNECTIONS_MAX, STALL_TIMEOUT_S, UNREAD_BYTES_MAX, _note)
        try:
            loop = asyncio.get_running_loop()
            self._listening = await loop.create_server(self._connections.connection, host, port)
        except OSError:
            await runner.cleanup()
            raise
        self._runner = runner
        return int(self._listening.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Stop listening, and close the connections. May be called twice."""
        if self._runner is not None:
            runner, self._runner = self._runner, None
            self._listening.close()
            await runner.cleanup()
            self._connections.abort()

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        with self._connections.serving(request):
            self._connections.prove(request)  # no handler waits for its peer
            named = request.headers.get("Host")
            # Beyond loopback, other machines have names for this one that it does not know.
            if self._is_on_loopback and named is not None and not is_localhost_or_address(named):
                return web.Response(status=403, text=_FOREIGN_HOST)
            return await handler(request)

    async def _index(self, request: web.Request) -> web.Response:
        served = ", ".join(["/livez", "/readyz", *self._pages])
        return web.Response(text=f"This server serves {served} and /metrics. {self._console()}\n")

    async def _livez(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        reasons = dict(self._unready_reasons())
        body = json.dumps({"ready": not reasons, "reasons": reasons}, sort_keys=True) + "\n"
        return web.Response(text=body, status=503 if reasons else 200, content_type="application/json")

    async def _metrics_page(self, request: web.Request) -> web.Response:
        parts = []
        for part in self._metrics.render():
            parts.append(part)
            await asyncio.sleep(0)  # lets waiting calls run
        return web.Response(body=b"".join(parts), headers={"Content-Type": CONTENT_TYPE})


def _note(peer: object, text: str) -> None:
    log.debug("%s: %s", peer, text)  # peers could fill the log


def _json_handler(answer: AnswerPage) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(request: web.Request) -> web.Response:
        status, found = await answer(request.query, request.headers.get("Authorization"))
        headers = {"Cache-Control": "no-store"}
        if status == web.HTTPUnauthorized.status_code:
            headers["WWW-Authenticate"] = "Bearer"
        return web.Response(
            text=json.dumps(found) + "\n", status=status, content_type="application/json", headers=headers
        )

    return handle
