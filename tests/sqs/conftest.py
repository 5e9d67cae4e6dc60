"""One host with an SQS port for the tests of a file."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from tests.support.sqs_host import SqsHost, sqs_client

_numbers = count()


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqsHost]:
    with SqsHost(tmp_path_factory.mktemp("sqs")) as started:
        started.start()
        yield started


@pytest.fixture(scope="module")
def sqs(host: SqsHost) -> Any:
    """Boto3's client of the host, without retries."""
    return sqs_client(host.endpoint, retries={"total_max_attempts": 1})


@pytest.fixture
def queue(sqs: Any) -> str:
    """The URL of a new queue."""
    return str(sqs.create_queue(QueueName=f"queue-{next(_numbers)}")["QueueUrl"])
