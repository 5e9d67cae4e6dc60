"""Node's sqs-consumer, on AWS' SDK for JavaScript, drains a queue."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.sqs_host import SqsHost

pytestmark = [pytest.mark.node, pytest.mark.process, pytest.mark.timeout(300)]

MESSAGE_COUNT: Final = 1_000


def test_sqs_consumer_consumes_a_thousand_messages(host: SqsHost, sqs: Any, queue: str, node_folder: Path) -> None:
    bodies = [f"grüße {place} 😀" for place in range(MESSAGE_COUNT)]
    for start in range(0, MESSAGE_COUNT, 10):
        entries = [
            {
                "Id": str(place),
                "MessageBody": body,
                "MessageAttributes": {"body": {"DataType": "String", "StringValue": body}},
            }
            for place, body in enumerate(bodies[start : start + 10])
        ]
        assert "Failed" not in sqs.send_message_batch(QueueUrl=queue, Entries=entries)
    command = ["node", str(node_folder / "drain.mjs"), host.endpoint, queue, str(MESSAGE_COUNT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(json.loads(done.stdout)) == sorted(bodies)
    assert "Messages" not in sqs.receive_message(QueueUrl=queue)
