"""kombu's SQS integration tests against a real host."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import pytest

from tests.support.foreign_suites import environment_python, run_suite
from tests.support.source_packages import KOMBU, fetched
from tests.support.sqs_host import SqsHost

REQUIREMENTS: Final = (f"kombu[sqs]=={KOMBU.version}", "pytest", "pytest-rerunfailures==16.7")
PASSED_MIN: Final = 39
_STATUS: Final = "it expects the status 404 of GoAws for a deleted receipt; SQS answers success"
KNOWN_FAILURES: Final[dict[str, str]] = {
    "test_ack_invalid_receipt_with_backoff[InvalidParameterValue]": _STATUS,
    "test_ack_invalid_receipt_with_backoff[ReceiptHandleIsInvalid]": _STATUS,
}


@pytest.mark.timeout(1_200)
def test_kombus_tests_pass_but_for_a_list(tmp_path: Path) -> None:
    folder = tmp_path / "suite"
    shutil.copytree(fetched(KOMBU) / "t", folder / "t", ignore=shutil.ignore_patterns("unit"))
    (folder / "pytest.ini").write_text("[pytest]\npython_classes = test_*\nmarkers = env\n")
    with SqsHost(tmp_path / "host") as host:
        host.start()
        environment = {"SQS_HOST": "127.0.0.1", "SQS_PORT": str(host.sqs_port)}
        arguments = ["t/integration/test_sqs.py", "-k", "not fanout"]
        result = run_suite(environment_python(REQUIREMENTS), folder, arguments, environment)
    print(f"kombu: {len(result.passed)} passed, {len(result.failed)} failed, {len(result.skipped)} skipped")
    assert result.unexpected(KNOWN_FAILURES) == [], result.output
    assert len(result.passed) >= PASSED_MIN
