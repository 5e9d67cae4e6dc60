"""Runs chains of tasks with retries over sqs://: celery_chain.py PORT COUNT. Worker and producer are one process."""

import sys

from celery import Celery, chain
from celery.contrib.testing.worker import start_worker

port, count = sys.argv[1], int(sys.argv[2])
app = Celery("chain", broker=f"sqs://key:secret@127.0.0.1:{port}", backend="cache+memory://")
app.conf.update(
    broker_transport_options={"region": "us-east-1", "is_secure": False, "wait_time_seconds": 1},
    task_acks_late=True,
    worker_hijack_root_logger=False,
)
tried: set[int] = set()


@app.task(bind=True, max_retries=3)
def once_again(self, number: int) -> int:
    if number not in tried:
        tried.add(number)
        raise self.retry(countdown=1)
    return number


@app.task
def double(number: int) -> int:
    return 2 * number


with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=60):
    results = [chain(once_again.s(number), double.s()).apply_async() for number in range(count)]
    assert [result.get(timeout=120) for result in results] == [2 * number for number in range(count)]
assert len(tried) == count
print(f"{count} messages")
