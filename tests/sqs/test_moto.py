"""moto's SQS tests against a real host."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import pytest

from tests.sqs.moto_failures import FIFO_FAILURES, OTHER_FAILURES, QUERY_FAILURES
from tests.support.foreign_suites import SuiteResult, environment_python, run_suite
from tests.support.source_packages import MOTO, fetched
from tests.support.sqs_host import ACCOUNT, OPTIONS_OF_TWO_REGIONS, SqsHost, make_west

FILES: Final = ("test_sqs.py", "test_sqs_message_attributes.py")
CONFTEST: Final = f'''
import pytest


@pytest.fixture
def account_id():
    return "{ACCOUNT}"  # moto's own asks STS, which is no queue
'''
PASSED_MIN: Final = 140
QUERY_PASSED_MIN: Final = 131
QUERY_CLIENT: Final = ("boto3==1.28.57", "botocore==1.31.57")
"""The Query protocol is what these versions speak."""
OTHER_FAILURES_MAX: Final = 9


@pytest.mark.timeout(1_200)
def test_motos_tests_pass_but_for_a_list(tmp_path: Path) -> None:
    python = environment_python(requirements("boto3"))
    result = run_motos_tests(tmp_path, python)
    print(f"moto: {len(result.passed)} passed, {len(result.failed)} failed, {len(result.skipped)} skipped")
    assert result.unexpected(OTHER_FAILURES | FIFO_FAILURES) == [], result.output
    assert len(result.passed) >= PASSED_MIN
    assert len(OTHER_FAILURES) <= OTHER_FAILURES_MAX


@pytest.mark.long
@pytest.mark.timeout(1_200)
def test_motos_tests_pass_over_the_query_protocol_but_for_a_list(tmp_path: Path) -> None:
    python = environment_python(requirements(*QUERY_CLIENT), is_constrained=False)
    result = run_motos_tests(tmp_path, python)
    print(f"moto, Query protocol: {len(result.passed)} passed, {len(result.failed)} failed")
    assert result.unexpected(OTHER_FAILURES | FIFO_FAILURES | QUERY_FAILURES) == [], result.output
    assert len(result.passed) >= QUERY_PASSED_MIN


def requirements(*client: str) -> tuple[str, ...]:
    return (f"moto=={MOTO.version}", *client, "freezegun==1.5.5", "pytest")


def run_motos_tests(tmp_path: Path, python: Path) -> SuiteResult:
    """Run moto's tests of SQS against a new host, whose queues differ in one region."""
    source = fetched(MOTO) / "tests"
    folder = tmp_path / "suite"
    (folder / "tests" / "test_sqs").mkdir(parents=True)
    (folder / "tests" / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = aws_verified\n")
    with SqsHost(tmp_path / "host", OPTIONS_OF_TWO_REGIONS) as host:
        host.start()
        make_west(host)
        shutil.copy(source / "__init__.py", folder / "tests")
        for name in ("__init__.py", *FILES):
            text = (source / "test_sqs" / name).read_text()
            (folder / "tests" / "test_sqs" / name).write_text(text.replace("http://localhost:5000", host.endpoint))
        environment = {
            "TEST_SERVER_MODE": "true",
            "TEST_SERVER_MODE_ENDPOINT": host.endpoint,
            "MOTO_CALL_RESET_API": "false",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
        }
        arguments = [f"tests/test_sqs/{name}" for name in FILES]
        return run_suite(python, folder, arguments, environment)
