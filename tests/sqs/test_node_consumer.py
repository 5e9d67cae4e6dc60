"""Node's sqs-consumer, on AWS' SDK for JavaScript, drains a queue."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.sqs_host import SqsHost

pytestmark = [pytest.mark.node, pytest.mark.process, pytest.mark.timeout(300)]

HERE: Final = Path(__file__).parent / "node"
MESSAGE_COUNT: Final = 1_000


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the program, with the packages that it needs beside it."""
    folder = tmp_path_factory.mktemp("node")
    for name in ("package.json", "drain.mjs"):
        shutil.copyfile(HERE / name, folder / name)
    install = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error"]
    done = subprocess.run(install, cwd=folder, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, f"npm must reach a package registry:\n{done.stdout}\n{done.stderr}"
    return folder / "drain.mjs"


def test_sqs_consumer_drains_a_thousand_messages(host: SqsHost, sqs: Any, queue: str, program: Path) -> None:
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
    command = ["node", str(program), host.endpoint, queue, str(MESSAGE_COUNT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(json.loads(done.stdout)) == sorted(bodies)
    assert "Messages" not in sqs.receive_message(QueueUrl=queue)
