"""Clients beside the newest boto3, each in an environment of its own: they send, receive and delete."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

import pytest

from foqs.access.keyring import signing_secret
from tests.support.certificates import secret_file
from tests.support.foreign_suites import environment_python
from tests.support.sqs_host import SqsHost

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

HERE: Final = Path(__file__).parent / "clients"
MESSAGES: Final = 20


@pytest.mark.parametrize(
    ("program", "requirements"),
    [
        ("boto3_cycle.py", ("boto3==1.34.100", "botocore==1.34.100")),
        ("boto3_cycle.py", ("boto3==1.28.57", "botocore==1.31.57")),
        ("query_cycle.py", ("boto3==1.28.57", "botocore==1.31.57")),
        ("aiobotocore_cycle.py", ("aiobotocore==3.10.0",)),
        ("celery_chain.py", ("celery[sqs]==5.7.0",)),
    ],
    ids=["boto3 1.34", "boto3 1.28, Query protocol", "all of the Query protocol", "aiobotocore", "Celery"],
)
def test_a_client_runs_its_cycle(host: SqsHost, tmp_path: Path, program: str, requirements: tuple[str, ...]) -> None:
    run_cycle(host, tmp_path, program, requirements)


def test_a_client_that_signs_gets_and_numbers_no_parameters_runs_its_cycle(tmp_path: Path) -> None:
    token = secret_file(tmp_path / "boss", b"a-secret-of-the-boss")
    options = {
        "auth.enabled": True,
        "auth.principals.boss.admin": True,
        "auth.principals.boss.token_file": str(token),
    }
    with SqsHost(tmp_path / "host", options) as guarded:
        guarded.start()
        run_cycle(guarded, tmp_path, "boto2_cycle.py", ("boto==2.49.0",), "boss", signing_secret(token.read_bytes()))


def run_cycle(host: SqsHost, tmp_path: Path, program: str, requirements: tuple[str, ...], *credentials: str) -> None:
    python = environment_python(requirements, is_constrained=False)
    command = [str(python), str(HERE / program), str(host.sqs_port), str(MESSAGES), *credentials]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4_000:]
    assert done.stdout.splitlines()[-1] == f"{MESSAGES} messages"
