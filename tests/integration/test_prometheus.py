"""Dashboards and alerts on a real Prometheus: the rules work, and each expression finds its metrics in a loaded cluster."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from foqs.dev.server_process import find_program
from foqs_client import Client, FoqsError, Item, Nack
from tests.support.aio import run
from tests.support.expressions import CONFIGS, alert_expressions, dashboard_expressions, selectors_of
from tests.support.mariadb import MariaDb
from tests.support.poll import until
from tests.support.prometheus import Prometheus
from tests.support.real_cluster import RealCluster
from tests.support.zookeeper import ZooKeeper

RULE_TESTS = Path(__file__).parents[1] / "prometheus" / "alerts_test.yml"
NAMES = ("one", "two")
RATE_INTERVAL = "20s"
NOT_NOW = ("overview: Time to drain: A",)
"""Expressions without a value while the backlog does not shrink."""


def promtool(*arguments: object) -> str:
    command = [find_program("promtool", "prometheus"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
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


@pytest.fixture
def loaded_cluster(tmp_path: Path) -> Iterator[Prometheus]:
    """Return a Prometheus that scrapes two hosts on which everything has happened that dashboards show."""
    database = MariaDb()
    database.start()
    try:
        with ZooKeeper() as zookeeper:
            cluster = RealCluster(tmp_path, zookeeper, database, shards=2)
            cluster.init()
            one, two = (cluster.host(name) for name in NAMES)
            with one, two:
                for host in (one, two):
                    host.launch()
                cluster.wait_until_served(NAMES)
                with Prometheus([one.http_port, two.http_port]) as prometheus:
                    until(lambda: len(prometheus.query('up{job="foqs"} == 1')) == 2, "both hosts are scraped", 60)
                    run(load(f"{one.address},127.0.0.1:{two.port}"), timeout=60)
                    until(lambda: _increased(prometheus), "the load shows in the rates", 60)
                    yield prometheus
    finally:
        database.remove()


def _increased(prometheus: Prometheus) -> bool:
    """Return whether acks were scraped, with a scrape before them, and an error twice."""
    return bool(
        prometheus.query(f"sum(rate(foqs_acked_items_total[{RATE_INTERVAL}])) > 0")
        and prometheus.query(f'rate(foqs_calls_total{{code!="OK"}}[{RATE_INTERVAL}])')
    )


async def load(url: str) -> None:
    """Leave READY, DEFERRED, LEASED and DEAD items; some acked, nacked and refused."""
    async with Client(url) as client:
        for topic in ("mail", "sms"):
            await client.enqueue([Item(topic, b"x", priority=n % 3) for n in range(100)])
            await client.enqueue([Item(topic, b"x", delay_ms=3_600_000)])
            first, second, third, *others = await client.dequeue({topic: 40})
            await client.nack([first, Nack(second.id, second.token, dead=True)])
            await client.release([third])
            await client.ack(others[:30])
        await client.enqueue([Item("mail", b"once", idempotency_key="k")])
        await client.enqueue([Item("mail", b"once", idempotency_key="k")])
        await client.enqueue([Item("mail", b"another", idempotency_key="k")])
        with pytest.raises(FoqsError):
            await client.item("1-1")


@pytest.mark.process
@pytest.mark.mysql
@pytest.mark.zookeeper
@pytest.mark.timeout(240)
def test_expressions_find_their_metrics_in_a_loaded_cluster(loaded_cluster: Prometheus) -> None:
    dashboards = dashboard_expressions(RATE_INTERVAL)
    selectors = {
        name + matchers
        for expression in [*dashboards.values(), *alert_expressions()]
        for name, matchers in selectors_of(expression)
    }
    assert len(selectors) > 50
    assert not [selector for selector in sorted(selectors) if not _has_series(loaded_cluster, selector)]
    empty = [name for name, expression in dashboards.items() if not loaded_cluster.query(expression)]
    assert [name for name in empty if name not in NOT_NOW] == []
    for expression in alert_expressions():
        loaded_cluster.query(expression)  # raises if it cannot be computed


def _has_series(prometheus: Prometheus, selector: str) -> bool:
    """Return whether a selector finds a series. Instead of errors of a cluster in trouble, any error will do."""
    return bool(prometheus.query(re.sub(r'\{code=~?"[A-Z_|]+"\}', '{code!="OK"}', selector)))
