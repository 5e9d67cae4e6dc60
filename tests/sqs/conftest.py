"""One host with an SQS server for the tests of a file."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.sqs_host import SqsHost, sqs_client

NODE: Final = Path(__file__).parent / "node"
_numbers = count()


@pytest.fixture(scope="session")
def node_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the programs for Node, and the packages that they need beside them."""
    folder = tmp_path_factory.mktemp("node")
    for name in ("package.json", "drain.mjs"):
        shutil.copyfile(NODE / name, folder / name)
    install = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error"]
    done = subprocess.run(install, cwd=folder, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, f"npm must reach a package registry:\n{done.stdout}\n{done.stderr}"
    return folder


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
