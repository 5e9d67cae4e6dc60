"""Consumers: dequeue items, run a handler for each, and settle them.

worker = Worker()

@worker.task("mail.*", concurrency=20)
async def send(job: Job) -> None: ...

worker.run("foqs://127.0.0.1:7411")
"""

from foqs_client.consumer.consumer import Consumer
from foqs_client.consumer.handler_outcome import Counts
from foqs_client.consumer.job import Dead, Discard, Job, NotBegun, Retry
from foqs_client.consumer.process_runner import CannotStart
from foqs_client.consumer.topic_selection import prefix_pattern
from foqs_client.consumer.worker import Worker, run_all

__all__ = [
    "CannotStart",
    "Consumer",
    "Counts",
    "Dead",
    "Discard",
    "Job",
    "NotBegun",
    "Retry",
    "Worker",
    "prefix_pattern",
    "run_all",
]
