"""The SDK's own retries: a send whose reply is lost is one message, and a killed host loses none."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.cutting_proxy import CuttingProxy
from tests.support.poll import until
from tests.support.sqs_host import SqsHost, sqs_client

pytestmark = [pytest.mark.process]

THREADS: Final = 8
CUT_EVERY: Final = 10


def send_all(make_client: Callable[[], Any], queue: str, bodies: list[str]) -> dict[str, str]:
    """Send each body with a client for each thread; return the message ids by body."""
    local = threading.local()

    def send(body: str) -> str:
        if not hasattr(local, "client"):
            local.client = make_client()
        return str(local.client.send_message(QueueUrl=queue, MessageBody=body)["MessageId"])

    with ThreadPoolExecutor(THREADS) as pool:
        return dict(zip(bodies, pool.map(send, bodies), strict=True))


def receive_all(sqs: Any, queue: str) -> Counter[tuple[str, str]]:
    """Receive and delete until the queue is empty; return how often each (body, id) came."""
    found: Counter[tuple[str, str]] = Counter()
    while messages := sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10).get("Messages"):
        found.update((message["Body"], message["MessageId"]) for message in messages)
        entries = [
            {"Id": str(place), "ReceiptHandle": message["ReceiptHandle"]} for place, message in enumerate(messages)
        ]
        assert "Failed" not in sqs.delete_message_batch(QueueUrl=queue, Entries=entries)
    return found


@pytest.mark.parametrize(
    "message_count",
    [
        pytest.param(400, marks=pytest.mark.timeout(180)),
        pytest.param(10_000, marks=[pytest.mark.long, pytest.mark.timeout(1_200)]),
    ],
)
def test_each_message_is_sent_once_although_replies_are_lost(host: SqsHost, sqs: Any, message_count: int) -> None:
    queue = sqs.create_queue(QueueName=f"cut-{message_count}")["QueueUrl"]
    bodies = [f"message {place}" for place in range(message_count)]
    with CuttingProxy(host.sqs_port, CUT_EVERY) as proxy:
        sent = send_all(lambda: sqs_client(proxy.endpoint), queue, bodies)
        assert proxy.cut_count >= message_count // CUT_EVERY
    assert receive_all(sqs, queue) == Counter(sent.items())


@pytest.mark.timeout(180)
def test_each_entry_of_a_batch_is_sent_once_although_replies_are_lost(host: SqsHost, sqs: Any, queue: str) -> None:
    with CuttingProxy(host.sqs_port, 3) as proxy:
        client = sqs_client(proxy.endpoint)
        for batch in range(20):
            entries = [{"Id": str(place), "MessageBody": f"{batch}-{place}"} for place in range(10)]
            assert "Failed" not in client.send_message_batch(QueueUrl=queue, Entries=entries)
        assert proxy.cut_count >= 6
    found = receive_all(sqs, queue)
    assert (len(found), set(found.values())) == (200, {1})


def test_a_reused_invocation_id_with_another_message_is_another_message(sqs: Any, queue: str) -> None:
    def fix_id(request: Any, **_: Any) -> None:
        request.headers["amz-sdk-invocation-id"] = "00000000-0000-4000-8000-000000000000"

    events = sqs.meta.events
    events.register("before-send.sqs.SendMessage", fix_id)
    try:
        ids = [sqs.send_message(QueueUrl=queue, MessageBody=body)["MessageId"] for body in ("a", "a", "b")]
    finally:
        events.unregister("before-send.sqs.SendMessage", fix_id)
    assert ids[0] == ids[1] != ids[2]
    assert sorted(receive_all(sqs, queue)) == [("a", ids[0]), ("b", ids[2])]


@pytest.mark.timeout(300)
def test_a_host_that_is_killed_three_times_loses_no_message_and_doubles_none(tmp_path: Path) -> None:
    with SqsHost(tmp_path) as host:
        host.start()
        sqs = sqs_client(host.endpoint, retries={"total_max_attempts": 30, "mode": "standard"})
        queue = sqs.create_queue(QueueName="mail")["QueueUrl"]
        done = threading.Event()
        sent: dict[str, str] = {}

        def keep_sending() -> None:
            client = sqs_client(host.endpoint, retries={"total_max_attempts": 30, "mode": "standard"})
            place = 0
            while not done.is_set():
                body = f"{threading.get_ident()}-{place}"
                sent[body] = client.send_message(QueueUrl=queue, MessageBody=body)["MessageId"]
                place += 1

        threads = [threading.Thread(target=keep_sending) for _ in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(3):
            wanted = len(sent) + 40
            until(lambda wanted=wanted: len(sent) >= wanted, "more messages are sent", 60)  # type: ignore[misc]
            host.kill9()
            host.start()
        done.set()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive()
        assert receive_all(sqs, queue) == Counter(sent.items())
