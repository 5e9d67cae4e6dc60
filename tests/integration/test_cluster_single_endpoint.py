"""A client that knows only one host is served by all: items of the other hosts reach it, and its acks reach them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from foqs.dev.local_cluster import LocalCluster
from tests.support.cluster import cluster
from tests.support.poll import until
from tests.support.single_endpoint_client import SingleEndpointClient

pytestmark = [pytest.mark.process, pytest.mark.mysql, pytest.mark.zookeeper, pytest.mark.timeout(300)]

_SHARDS = 6
_ITEMS = 90
_CALL = 10
_LEASE_MS = 600_000
_WAIT_MS = 30_000


@pytest.fixture(scope="module")
def running() -> Iterator[LocalCluster]:
    """Three hosts, each with its part of the shards. No shard moves any more."""
    with cluster(shards=_SHARDS) as found:
        until(lambda: all(host.is_ok("/readyz") for host in found.hosts), "every host takes calls", 60)
        with SingleEndpointClient(found.hosts[0].address) as client:
            part = _SHARDS // len(found.hosts)
            until(lambda: sorted(Counter(client.owners().values()).values()) == [part] * 3, "each has its part", 60)
        yield found


@pytest.fixture
def clients(running: LocalCluster) -> Iterator[list[SingleEndpointClient]]:
    """Yield one client per host, the second with the compact protocol."""
    with ExitStack() as stack:
        yield [stack.enter_context(SingleEndpointClient(host.address, n == 1)) for n, host in enumerate(running.hosts)]


def waiting(running: LocalCluster, host: int) -> int:
    """Return the number of dequeues that wait for items at a host; -1 if it does not answer in time."""
    try:
        page = running.hosts[host].get("/metrics")
    except OSError:
        return -1
    [number] = re.findall(r"^foqs_waiting_dequeues (\d+)", page, re.MULTILINE)
    return int(number)


def test_items_of_other_hosts_are_delivered_nacked_and_acked_through_one_host(
    running: LocalCluster, clients: list[SingleEndpointClient]
) -> None:
    consumer, *producers = clients
    ids: dict[bytes, str] = {}
    for n in range(0, _ITEMS, _CALL):
        for host, producer in enumerate(producers):
            payloads = [f"{host}-{n + k}".encode() for k in range(_CALL)]
            ids |= dict(zip(payloads, producer.enqueue("work", payloads), strict=True))
    owners = consumer.owners()
    at = {owners[int(id.partition("-")[0])] for id in ids.values()}
    assert at == {host.port for host in running.hosts[1:]}

    deliveries: Counter[tuple[bytes, int]] = Counter()
    while consumer.count("work"):
        items = consumer.dequeue("work", _CALL, _WAIT_MS, _LEASE_MS)
        assert items
        deliveries.update((item.payload, item.attempt) for item in items)
        again = [item for item in items if item.attempt == 1 and item.payload.endswith(b"3")]
        done = [item for item in items if item not in again]
        for call, some in ((consumer.nack, again), (consumer.ack, done)):
            for outcome in call(some) if some else ():
                assert outcome.error is None
                assert not outcome.already_gone
    assert deliveries == Counter([(payload, 1) for payload in ids] + [(p, 2) for p in ids if p.endswith(b"3")])
    assert [client.count("work") for client in clients] == [0, 0, 0]


@pytest.mark.parametrize("producer", [1, 2])
def test_a_dequeue_waiting_at_one_host_gets_an_item_enqueued_at_another(
    running: LocalCluster, clients: list[SingleEndpointClient], producer: int
) -> None:
    topic = f"calls {producer}"
    with ExitStack() as stack:
        two = [stack.enter_context(SingleEndpointClient(running.hosts[0].address)) for _ in range(2)]
        waiters = stack.enter_context(ThreadPoolExecutor())
        for turn in range(3):
            polls = [waiters.submit(client.dequeue, topic, 1, _WAIT_MS, _LEASE_MS) for client in two]
            until(lambda: waiting(running, 0) == 2, "both wait at the first host")
            payloads = [f"{turn}-{n}".encode() for n in range(2)]
            clients[producer].enqueue(topic, payloads)
            [one], [other] = [poll.result() for poll in polls]
            assert sorted([one.payload, other.payload]) == payloads
            assert (one.attempt, other.attempt) == (1, 1)
            for client, item in zip(two, (one, other), strict=True):
                [outcome] = client.ack([item])
                assert (outcome.error, bool(outcome.already_gone)) == (None, False)
    assert clients[0].count(topic) == 0
