"""docs/worker.md: the examples work as written."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from foqs_client import Item, SyncClient, TopicPolicy
from tests.support.poll import until
from tests.support.processes import PROGRAM, RestartableHost

ADDRESS = "foqs://127.0.0.1:7411"
LEASES = {"namespace.lease_ms_default": 600_000}
"""No lease ends while a slow machine works."""
EXAMPLES = re.findall(r"```python\n(.*?)```", (Path(__file__).parents[2] / "docs" / "worker.md").read_text(), re.DOTALL)

pytestmark = pytest.mark.process


@pytest.fixture
def host(tmp_path: Path) -> Iterator[RestartableHost]:
    with RestartableHost(tmp_path / "host", "memory:", LEASES) as host:
        host.start()
        yield host


@pytest.fixture
def client(host: RestartableHost) -> Iterator[SyncClient]:
    with SyncClient(host.address) as client:
        yield client


def environment(host: RestartableHost) -> dict[str, str]:
    return {
        **os.environ,
        "PATH": f"{PROGRAM.parent}:{os.environ['PATH']}",
        "FOQS_ADDRESS": host.address,
        "PYTHONUNBUFFERED": "1",
    }


def run_until_empty(command: list[str], folder: Path, host: RestartableHost, client: SyncClient) -> tuple[str, str]:
    """Run a worker until no item is left, now or later. Return both of its streams."""
    process = subprocess.Popen(
        command, cwd=folder, env=environment(host), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        until(lambda: not client.topics(states=["ready", "leased", "deferred"]).topics, "all is done")
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    assert process.returncode == 0, err
    return out, err


@pytest.mark.parametrize("command", [[str(PROGRAM), "worker", "jobs:worker"], [sys.executable, "jobs.py"]])
def test_the_example_with_handlers_runs_in_both_ways(
    command: list[str], tmp_path: Path, host: RestartableHost, client: SyncClient
) -> None:
    (tmp_path / "jobs.py").write_text(EXAMPLES[0].replace(ADDRESS, host.address))
    client.enqueue([Item("mail.eu", b"hello"), Item("sms", b""), Item("images.a", b"cat")])
    out, _ = run_until_empty(command, tmp_path, host, client)
    assert "sent mail.eu b'hello' at attempt 1" in out
    assert "resized b'cat'" in out
    [dead] = client.dead().items
    assert dead.metadata == b"an empty letter"


def test_the_example_of_items_that_follow_adds_them(tmp_path: Path, host: RestartableHost, client: SyncClient) -> None:
    (tmp_path / "orders.py").write_text(EXAMPLES[1].replace(ADDRESS, host.address))
    client.enqueue([Item("orders", b"17"), Item("orders", b"18")])
    process = subprocess.Popen([sys.executable, "orders.py"], cwd=tmp_path, env=environment(host))
    try:
        until(
            lambda: [topic.topic for topic in client.topics().topics] == ["invoices", "parcels"], "the orders are done"
        )
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.wait()
    followed: list[bytes] = []
    while len(followed) < 4:  # a dequeue returns without the items of a shard that is late
        followed += [item.payload for item in client.dequeue({"invoices": 9, "parcels": 9}, wait_ms=5_000)]
    assert sorted(followed) == [b"17"] * 2 + [b"18"] * 2


def test_the_example_that_needs_order_runs_with_its_policy_only(
    tmp_path: Path, host: RestartableHost, client: SyncClient
) -> None:
    (tmp_path / "jobs.py").write_text(EXAMPLES[2].replace(ADDRESS, host.address))
    client.enqueue([Item("orders", b"%d" % number, group="Ada") for number in range(3)])
    for command in (
        [str(PROGRAM), "worker", "jobs:worker"],
        [str(PROGRAM), "worker", "jobs:book", "--topic", "orders", "--group-leases-max", "1"],
    ):
        refused = subprocess.run(
            command, cwd=tmp_path, env=environment(host), capture_output=True, text=True, timeout=60, check=False
        )
        assert refused.returncode == 2, refused.stderr
        assert "the policy of orders allows any number" in refused.stderr
    client.set_topic_policy(TopicPolicy("orders", group_leases_max=1))
    out, _ = run_until_empty([str(PROGRAM), "worker", "jobs:worker"], tmp_path, host, client)
    booked = [line for line in out.splitlines() if line.startswith("booked")]
    assert booked == ["booked Ada b'0'", "booked Ada b'1'", "booked Ada b'2'"]


def test_the_example_of_a_consumer_in_its_own_program_runs(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(EXAMPLES[3])
    done = subprocess.run(
        [sys.executable, "own.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "2 done"
