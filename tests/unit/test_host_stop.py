"""A host whose engine fails stops in order, with an exit code instead of a traceback."""

from __future__ import annotations

import asyncio

import pytest

from foqs.host_run import serve
from foqs.options.config import Config
from foqs.queue.engine import Engine
from foqs.telemetry.http_server import HttpServer


@pytest.mark.usefixtures("leaves_tests_out_again")
def test_a_host_whose_engine_breaks_stops_in_order_and_exits_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[str] = []

    async def broken(engine: Engine) -> None:
        raise RuntimeError("a bug")

    stop_http = HttpServer.stop

    async def stop(http: HttpServer) -> None:
        stopped.append("http")
        await stop_http(http)

    monkeypatch.setattr(Engine, "run", broken)
    monkeypatch.setattr(HttpServer, "stop", stop)
    config = Config.model_validate({"store": {"url": "memory:"}, "server": {"port": 0, "http_port": 0}})
    assert asyncio.run(serve(config)) == 1
    assert stopped == ["http"]
