"""Tests of the HTTP server: liveness, readiness and metrics."""

from __future__ import annotations

import asyncio
import socket
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from foqs.shard.observer import ShardObserver
from foqs.telemetry import http_server
from foqs.telemetry.http_server import HttpServer
from foqs.telemetry.metrics import Metrics, Samples

Answer = tuple[int, str, bytes]


def serve(
    server: HttpServer, talk: Callable[[Callable[[str], Awaitable[Answer]]], Awaitable[None]], host: str = "127.0.0.1"
) -> None:
    async def main() -> None:
        port = await server.start(host, 0)
        try:
            async with aiohttp.ClientSession() as http:

                async def get(path: str) -> Answer:
                    async with http.get(f"http://{host}:{port}{path}") as reply:
                        return reply.status, reply.headers["Content-Type"], await reply.read()

                await talk(get)
        finally:
            await server.stop()
            await server.stop()

    asyncio.run(main())


def test_livez_answers_while_shards_are_not_served() -> None:
    async def talk(get: Callable[[str], Awaitable[Answer]]) -> None:
        assert (await get("/livez"))[0] == 200
        assert (await get("/nothing"))[0] == 404

    serve(HttpServer(Metrics(), lambda: {"shard 0": "recovering"}), talk)


def test_readyz_follows_the_shards_and_gives_reasons() -> None:
    reasons = {"shard 1": "its database is down"}

    async def talk(get: Callable[[str], Awaitable[Answer]]) -> None:
        assert await get("/readyz") == (
            503,
            "application/json; charset=utf-8",
            b'{"ready": false, "reasons": {"shard 1": "its database is down"}}\n',
        )
        reasons.clear()
        assert await get("/readyz") == (
            200,
            "application/json; charset=utf-8",
            b'{"ready": true, "reasons": {}}\n',
        )

    serve(HttpServer(Metrics(), lambda: reasons), talk)


@pytest.mark.parametrize(
    ("named", "status"),
    [
        ("localhost:7412", 200),
        ("127.0.0.1", 200),
        ("[::1]:80", 200),
        ("evil.example", 403),
        ("localhost.evil.example", 403),
    ],
)
def test_on_loopback_the_port_answers_only_to_names_of_this_machine(named: str, status: int) -> None:
    async def main() -> None:
        server = HttpServer(Metrics(), dict)
        port = await server.start("127.0.0.1", 0)
        try:
            async with (
                aiohttp.ClientSession() as http,
                http.get(f"http://127.0.0.1:{port}/metrics", headers={"Host": named}) as reply,
            ):
                assert reply.status == status
        finally:
            await server.stop()

    asyncio.run(main())


def test_beyond_loopback_the_port_answers_to_any_name() -> None:
    async def main() -> None:
        server = HttpServer(Metrics(), dict)
        port = await server.start("0.0.0.0", 0)
        try:
            async with (
                aiohttp.ClientSession() as http,
                http.get(f"http://127.0.0.1:{port}/livez", headers={"Host": "queue.example"}) as reply,
            ):
                assert reply.status == 200
        finally:
            await server.stop()

    asyncio.run(main())


def test_metrics_are_served_in_prometheus_format() -> None:
    metrics = Metrics()
    metrics.items_enqueued(3)

    async def talk(get: Callable[[str], Awaitable[Answer]]) -> None:
        status, content_type, body = await get("/metrics")
        assert status == 200
        assert content_type.startswith("text/plain; version=0.0.4")
        assert b"foqs_enqueued_items_total 3.0\n" in body
        assert b"_created" not in body

    serve(HttpServer(metrics, dict), talk)


class TurnedMetrics(Metrics):
    """Metrics that know in which turn of the event loop each of them was rendered."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = 0
        self.rendered_in: list[int] = []

    def render(self) -> Iterator[bytes]:
        for part in super().render():
            self.rendered_in.append(self.turn)
            yield part


def test_scrape_lets_the_event_loop_run_between_metrics() -> None:
    metrics = TurnedMetrics()

    async def talk(get: Callable[[str], Awaitable[Answer]]) -> None:
        def next_turn() -> None:
            metrics.turn += 1
            asyncio.get_running_loop().call_soon(next_turn)

        next_turn()
        async with asyncio.timeout(20):
            await get("/metrics")

    serve(HttpServer(metrics, dict), talk)
    assert len(set(metrics.rendered_in)) == len(metrics.rendered_in) > 20


def test_peers_that_say_nothing_are_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "STALL_TIMEOUT_S", 0.1)

    async def main() -> None:
        server = HttpServer(Metrics(), dict)
        port = await server.start("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(20):
            assert await reader.read() == b""
        writer.close()
        await server.stop()

    asyncio.run(main())


def test_port_in_use_is_an_error_and_leaves_nothing_open() -> None:
    async def main() -> None:
        server = HttpServer(Metrics(), dict)
        with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
            await server.start("127.0.0.1", taken.getsockname()[1])
        await server.stop()

    asyncio.run(main())


# ------------------------------------------------------------------- metrics


def samples(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(b"".join(metrics.render()).decode())
        for sample in family.samples
    }


def test_every_event_is_counted() -> None:
    metrics = Metrics()
    listener: ShardObserver = metrics
    listener.items_enqueued(2)
    listener.items_delivered(3)
    listener.items_acked(4)
    listener.items_nacked(5)
    listener.items_released(6)
    listener.items_timed_out(7)
    listener.items_dead_lettered(8)
    listener.items_moved(9)
    listener.flush_committed(1, 10, 0.5)
    listener.flush_retried(1)
    listener.commit_outcome_unknown(1)
    listener.shard_fenced(1)
    metrics.call("enqueue", "OK", 0.25)
    metrics.call("getRouting", "UNAVAILABLE", 0.25)
    found = samples(metrics)
    shard = (("shard", "1"),)
    for name, labels, value in [
        ("foqs_enqueued_items_total", (), 2),
        ("foqs_delivered_items_total", (), 3),
        ("foqs_acked_items_total", (), 4),
        ("foqs_nacked_items_total", (), 5),
        ("foqs_released_items_total", (), 6),
        ("foqs_timed_out_items_total", (), 7),
        ("foqs_dead_lettered_items_total", (), 8),
        ("foqs_moved_items_total", (), 9),
        ("foqs_flush_duration_seconds_sum", shard, 0.5),
        ("foqs_flush_items_sum", shard, 10),
        ("foqs_flush_retries_total", shard, 1),
        ("foqs_unknown_commit_outcomes_total", shard, 1),
        ("foqs_fenced_ownerships_total", shard, 1),
        ("foqs_enqueue_duration_seconds_sum", (), 0.25),
        ("foqs_dequeue_duration_seconds_count", (), 0),
        ("foqs_calls_total", (("code", "OK"), ("method", "enqueue")), 1),
        ("foqs_calls_total", (("code", "UNAVAILABLE"), ("method", "getRouting")), 1),
    ]:
        assert found[name, labels] == value, name


def test_samplers_are_called_at_each_scrape() -> None:
    metrics = Metrics()
    now: defaultdict[str, list[tuple[tuple[str, ...], float]]] = defaultdict(list)
    now["foqs_connections"] = [((), 7)]
    sampled: Samples = now

    metrics.add_sampler(lambda: sampled)
    assert samples(metrics)["foqs_connections", ()] == 7
    now["foqs_connections"] = [((), 8)]
    now["foqs_shard_state"] = [(("2", "owned"), 1), (("3", "lost"), 0)]
    now["foqs_refused_writes"] = [(("2",), 5)]
    found = samples(metrics)
    assert found["foqs_connections", ()] == 8
    assert found["foqs_shard_state", (("shard", "2"), ("state", "owned"))] == 1
    assert found["foqs_shard_state", (("shard", "3"), ("state", "lost"))] == 0
    assert found["foqs_refused_writes_total", (("shard", "2"),)] == 5


def test_two_hosts_in_one_process_count_separately() -> None:
    one, other = Metrics(), Metrics()
    one.items_acked(1)
    assert samples(other)["foqs_acked_items_total", ()] == 0
