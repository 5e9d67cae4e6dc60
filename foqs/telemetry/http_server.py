"""The host's HTTP port: is it alive, is it ready, what does it count.

Always true: /livez answers as long as the event loop turns; /readyz is 200
only while every shard serves; nothing here changes anything. Knows nothing of
shards; it is given functions to ask.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping

from aiohttp import web

from foqs.telemetry.metrics import CONTENT_TYPE, Metrics

HEADER_BYTES_MAX = 4_096


class HttpServer:
    """Serves /livez, /readyz and /metrics.

    Args:
        metrics: what /metrics shows.
        unready_reasons: why the host is not ready, by shard or part; empty means ready.
    """

    def __init__(self, metrics: Metrics, unready_reasons: Callable[[], Mapping[str, str]]) -> None:
        self._metrics = metrics
        self._unready_reasons = unready_reasons
        self._runner: web.AppRunner | None = None

    async def start(self, host: str, port: int) -> int:
        """Listens, and returns the port (of interest when `port` is 0).

        Raises:
            OSError: the address cannot be had.
        """
        app = web.Application(client_max_size=HEADER_BYTES_MAX)
        app.router.add_get("/livez", self._livez)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics_page)
        runner = web.AppRunner(
            app, access_log=None, max_line_size=HEADER_BYTES_MAX, max_field_size=HEADER_BYTES_MAX, shutdown_timeout=1.0
        )
        await runner.setup()
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError:
            await runner.cleanup()
            raise
        self._runner = runner
        return int(runner.addresses[0][1])

    async def stop(self) -> None:
        """Closes the port and its connections; may be called twice."""
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()

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
            await asyncio.sleep(0)  # a call that has come meanwhile need not wait for all of them
        return web.Response(body=b"".join(parts), headers={"Content-Type": CONTENT_TYPE})
