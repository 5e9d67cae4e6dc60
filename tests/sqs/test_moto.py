"""moto's SQS tests against a real host."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import pytest

from tests.sqs.moto_failures import FIFO_FAILURES, OTHER_FAILURES
from tests.support.foreign_suites import environment_python, run_suite
from tests.support.source_packages import MOTO, fetched
from tests.support.sqs_host import ACCOUNT, SqsHost

REQUIREMENTS: Final = (f"moto=={MOTO.version}", "boto3", "freezegun==1.5.5", "pytest")
FILES: Final = ("test_sqs.py", "test_sqs_message_attributes.py")
CONFTEST: Final = f'''
import pytest


@pytest.fixture
def account_id():
    return "{ACCOUNT}"  # moto's own asks STS, which is no queue
'''
PASSED_MIN: Final = 100
OTHER_FAILURES_MAX: Final = 10


@pytest.mark.timeout(1_200)
def test_motos_tests_pass_but_for_a_list(tmp_path: Path) -> None:
    source = fetched(MOTO) / "tests"
    folder = tmp_path / "suite"
    (folder / "tests" / "test_sqs").mkdir(parents=True)
    (folder / "tests" / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = aws_verified\n")
    with SqsHost(tmp_path / "host") as host:
        host.start()
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
        result = run_suite(environment_python(REQUIREMENTS), folder, arguments, environment)
    print(f"moto: {len(result.passed)} passed, {len(result.failed)} failed, {len(result.skipped)} skipped")
    assert result.unexpected(OTHER_FAILURES | FIFO_FAILURES) == [], result.output
    assert len(result.passed) >= PASSED_MIN
    assert len(OTHER_FAILURES) <= OTHER_FAILURES_MAX
