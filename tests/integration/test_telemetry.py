"""A loaded cluster as programs see it over HTTP: Prometheus with the dashboards and alerts, and KEDA."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from foqs.dev.server_process import find_program
from foqs_client import Client, Delivery, FoqsError, Item, Nack, TopicPolicy
from tests.support.aio import run
from tests.support.certificates import secret_file
from tests.support.expressions import CONFIGS, alert_expressions, dashboard_expressions, selectors_of
from tests.support.keda import ScalerError, documented, metrics_api_value, prometheus_value
from tests.support.mariadb import MariaDb
from tests.support.poll import until
from tests.support.prometheus import Prometheus
from tests.support.real_cluster import RealCluster
from tests.support.zookeeper import ZooKeeper

pytestmark = [pytest.mark.process, pytest.mark.mysql, pytest.mark.zookeeper, pytest.mark.timeout(240)]

RULE_TESTS = Path(__file__).parents[1] / "prometheus" / "alerts_test.yml"
NAMES = ("one", "two")
TOKEN = "secret-of-the-operator-0123456789"
RATE_INTERVAL = "20s"
NOT_NOW = ("overview: Time to empty: A", "overview: Primaries of databases: ")
"""How expressions begin that have no value while the backlog does not shrink, or in a cluster without regions."""


def promtool(*arguments: object) -> str:
    command = [find_program("promtool", "prometheus"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_rules_and_configuration_are_valid() -> None:
    assert f"{len(alert_expressions())} rules found" in promtool("check", "config", CONFIGS / "prometheus.yml")


def test_each_alert_fires_and_is_quiet_when_it_should() -> None:
    assert "SUCCESS" in promtool("test", "rules", RULE_TESTS)
    tests = RULE_TESTS.read_text()
    for line in (CONFIGS / "alerts.yml").read_text().splitlines():
        if "- alert: " in line:
            name = line.split("- alert: ")[1]
            assert f"- name: {name} fires\n" in tests
            assert f"- name: {name} is quiet\n" in tests


@pytest.mark.parametrize(("owned", "value"), [(("1", "1"), 0), (("1", "0"), 1), (("0", "0"), 2)])
def test_shards_without_an_owner_are_counted_also_if_none_has_one(
    tmp_path: Path, owned: tuple[str, str], value: int
) -> None:
    series = [
        {"series": f'foqs_shard_state{{instance="a", shard="{shard}", state="owned"}}', "values": state}
        for shard, state in enumerate(owned)
    ]
    expression = dashboard_expressions(RATE_INTERVAL)["overview: Shards not served: A"]
    samples = [{"labels": "{}", "value": value}]
    wanted = [{"expr": expression, "eval_time": "0m", "exp_samples": samples}]
    file = tmp_path / "test.yml"  # JSON is YAML
    file.write_text(json.dumps({"tests": [{"interval": "1m", "input_series": series, "promql_expr_test": wanted}]}))
    assert "SUCCESS" in promtool("test", "rules", file)


@dataclass(frozen=True)
class LoadedCluster:
    """Two hosts on which everything has happened that dashboards show, and a Prometheus that scrapes them."""

    http_ports: tuple[int, int]
    prometheus: Prometheus


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedCluster]:
    database = MariaDb()
    database.start()
    try:
        with ZooKeeper() as zookeeper:
            folder = tmp_path_factory.mktemp("hosts")
            cluster = RealCluster(folder, zookeeper, database, shards=2)
            cluster.init()
            tokens = str(secret_file(folder / "tokens", TOKEN.encode()))
            options = {
                "auth.enabled": True,
                "auth.principals.operator.admin": True,
                "auth.principals.operator.token_file": tokens,
                "cluster.token_file": tokens,
                "store.journal": True,
            }
            one, two = (cluster.host(name, options=options) for name in NAMES)
            with one, two:
                for host in (one, two):
                    host.launch()
                cluster.wait_until_served(NAMES)
                ports = (one.http_port, two.http_port)
                with Prometheus(ports) as prometheus:
                    until(lambda: len(prometheus.query('up{job="foqs"} == 1')) == 2, "both hosts are scraped", 60)
                    run(load(f"{one.address},127.0.0.1:{two.port}"))
                    until(lambda: _increased(prometheus), "the load shows in the rates", 60)
                    yield LoadedCluster(ports, prometheus)
    finally:
        database.remove()


def _increased(prometheus: Prometheus) -> bool:
    """Return whether acks were scraped, with a scrape before them, and an error twice."""
    return bool(
        prometheus.query(f"sum(rate(foqs_acked_items_total[{RATE_INTERVAL}])) > 0")
        and prometheus.query(f'rate(foqs_calls_total{{code!="OK"}}[{RATE_INTERVAL}])')
    )


async def load(url: str) -> None:
    """Leave READY, DEFERRED, LEASED and DEAD items; some acked, nacked and refused. One topic has groups with a limit."""
    async with Client(url, token=TOKEN) as client:
        await client.set_topic_policy(TopicPolicy("orders", group_leases_max=1))
        await client.enqueue([Item("orders", b"x", group=f"group {n % 3}") for n in range(9)])
        await take(client, "orders", 2)
        for topic in ("mail", "sms"):
            await client.enqueue([Item(topic, b"x", priority=n % 3) for n in range(100)])
            await client.enqueue([Item(topic, b"x", delay_ms=3_600_000)])
            first, second, third, *others = await take(client, topic, 40)
            await client.nack([first, Nack(second.id, second.token, dead=True)])
            await client.release([third])
            await client.ack(others[:30])
        await client.enqueue([Item("mail", b"once", idempotency_key="k")])
        await client.enqueue([Item("mail", b"once", idempotency_key="k")])
        await client.enqueue([Item("mail", b"another", idempotency_key="k")])
        with pytest.raises(FoqsError):
            await client.item("1-1")


async def take(client: Client, topic: str, count: int) -> list[Delivery]:
    """Dequeue this many items: a reply leaves out a shard or a host that is late."""
    taken: list[Delivery] = []
    while len(taken) < count:
        taken += await client.dequeue({topic: count - len(taken)}, wait_ms=1_000, lease_ms=600_000)
    return taken


METRICS_OF_REGIONS = (
    "foqs_database_serving",
    "foqs_database_ackers",
    "foqs_database_proven_ackers",
    "foqs_database_replaceable",
    "foqs_database_blocked",
    "foqs_semisync_unacknowledged_total",
    "foqs_semisync_weakened_total",
    "foqs_replica_lag_seconds",
    "foqs_replica_lag_max_seconds",
)
"""Only hosts of a database with several servers have them."""


def test_expressions_find_their_metrics_in_a_loaded_cluster(cluster: LoadedCluster) -> None:
    prometheus = cluster.prometheus
    dashboards = dashboard_expressions(RATE_INTERVAL)
    selectors = {
        name + matchers
        for expression in [*dashboards.values(), *alert_expressions()]
        for name, matchers in selectors_of(expression)
        if "relay" not in name + matchers  # of another program
        and name not in METRICS_OF_REGIONS
    }
    assert len(selectors) > 50
    assert never_found(selectors, lambda selector: _has_series(prometheus, selector)) == []
    shown = [name for name in dashboards if not name.startswith(NOT_NOW)]
    assert never_found(shown, lambda name: bool(prometheus.query(dashboards[name]))) == []
    for expression in alert_expressions():
        prometheus.query(expression)  # raises if it cannot be computed


def never_found(names: Iterable[str], is_found: Callable[[str], bool]) -> list[str]:
    """Return the names that are not found at any time. The series of a host are away after a scrape that took too long."""
    left = sorted(names)

    def are_found() -> bool:
        left[:] = [name for name in left if not is_found(name)]
        return not left

    with suppress(TimeoutError):
        until(are_found, "all are found", 30)
    return left


def _has_series(prometheus: Prometheus, selector: str) -> bool:
    """Return whether a selector finds a series. Instead of errors of a cluster in trouble, any error will do."""
    return bool(prometheus.query(re.sub(r'\{code=~?"[A-Za-z_|]+"\}', '{code!="OK"}', selector)))


def test_scale_page_answers_keda_for_the_whole_cluster_at_each_host(cluster: LoadedCluster) -> None:
    url = urlsplit(documented("url"))
    path = f"{url.path}?{url.query}"
    location = documented("valueLocation")
    assert (url.port, location, documented("targetValue"), documented("authMode")) == (7412, "wanted", "1", "bearer")
    ports = cluster.http_ports

    def facts(port: int) -> dict[str, float]:
        names = ("ready", "leased", "deferred", "dead", "ready_per_s", "acked_per_s", "oldest_ready_age_s", "wanted")
        return {name: metrics_api_value(port, path, name, TOKEN) for name in names}

    def agree() -> bool:
        """Both hosts know all items; a rate that one of them reported a second ago has fallen a little."""
        one, two = facts(ports[0]), facts(ports[1])
        counts = {name: one[name] for name in ("ready", "leased", "deferred", "dead")}
        return (
            counts == {"ready": 63, "leased": 7, "deferred": 1, "dead": 1}
            and counts == {name: two[name] for name in counts}
            and two["acked_per_s"] == pytest.approx(one["acked_per_s"], rel=0.2)
            and one["acked_per_s"] > 0
            and min(one["oldest_ready_age_s"], two["oldest_ready_age_s"]) > 0
            and one["wanted"] >= 1
        )

    until(agree, "both hosts give the numbers of the cluster", 30)
    for token in (None, "wrong"):
        with pytest.raises(ScalerError, match="401"):
            metrics_api_value(ports[0], path, location, token)
    with pytest.raises(ScalerError, match="404"):
        metrics_api_value(ports[0], path.replace("default", "nowhere"), location, TOKEN)


def test_query_of_the_prometheus_scaler_gives_one_number(cluster: LoadedCluster) -> None:
    port = cluster.prometheus.port

    def counts_all_items() -> bool:
        """At a moment before which each host was scraped in time."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        value = prometheus_value(port, documented("query"), now)
        ready = prometheus_value(port, 'sum(foqs_topic_items{namespace="default", topic="mail", state="ready"})', now)
        # And the acks, as far as they were made after the topic got its series.
        return ready >= 60 and value >= ready / 120

    until(counts_all_items, "the query gives the consumers for all items", 30)
