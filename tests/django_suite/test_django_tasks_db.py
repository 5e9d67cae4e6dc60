"""The tests of django-tasks-db, a backend whose queue is a table, over our backend, relay, queue and worker.

Its source package has the tests, but neither their tasks nor their settings: those are ours, and a package of its name that
stands in for it. Two of its classes are about a backend and a worker. The others are about its tables, locks, pruning,
admin and processes, and are not run.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.support.foreign_suites import run_suite
from tests.support.source_packages import DJANGO_TASKS_DB, fetched

PROJECT: Final = Path(__file__).with_name("project")
PASSED_MIN: Final = 29
CLASSES: Final = ("DatabaseBackendTestCase", "DatabaseBackendWorkerTestCase")

_ROW: Final = "it writes a row of that package's table, with no task behind it"
_OPTION: Final = "an option of that package's worker, which asks a table"
_IDS: Final = "ids of results are made in one way here"
_BACKEND_FAILURES: Final = {
    "test_database_backend_app_missing": "the missing application is ours",
    "test_index_scan_for_ready": "an index of that package's table",
    "test_invalid_task_path": _ROW,
    "test_missing_task_path": _ROW,
    "test_priority_range_check": _ROW,
    "test_custom_id_function": _IDS,
    "test_postgres_id_function_expression": _IDS,
    "test_unknown_id_function": _IDS,
    "test_task_name": _ROW,
}
_WORKER_FAILURES: Final = {
    "test_complex_return_value": "the same TypeError with another text: values are checked as Django's own backends check them",
    "test_doesnt_process_different_backend": "a worker for a backend of another kind is refused",
    "test_incorrect_backend": "it is refused in other words",
    "test_empty_worker_id": _OPTION,
    "test_too_long_worker_id": _OPTION,
    "test_exclude_queues_requires_processing_all_queues": _OPTION,
    "test_excluding_unknown_queue_processes_selected_queues": _OPTION,
    "test_process_all_queues_excluding_one_queue": _OPTION,
    "test_fractional_interval": _OPTION,
    "test_infinite_interval": _OPTION,
    "test_negative_interval": _OPTION,
    "test_zero_interval": _OPTION,
    "test_max_tasks": _OPTION,
    "test_negative_max_tasks": _OPTION,
    "test_zero_max_tasks": _OPTION,
    "test_invalid_task_path": _ROW,
    "test_missing_task_path": _ROW,
    "test_task_import_string": _ROW,
    "test_run_after": "it changes the moment of a task that is in the queue",
    "test_run_after_priority": "the order is the queue's, and not that of a table",
    "test_verbose_logging": "what that package's worker prints",
}
FAILURES: Final = {
    f"{group}.{name}": reason
    for group, failures in zip(CLASSES, (_BACKEND_FAILURES, _WORKER_FAILURES), strict=True)
    for name, reason in failures.items()
}


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_tests_of_a_backend_over_a_table_pass_but_for_a_list(tmp_path: Path) -> None:
    folder = tmp_path / "suite"
    shutil.copytree(PROJECT, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "suite_conftest.py").rename(folder / "conftest.py")
    shutil.copy(fetched(DJANGO_TASKS_DB) / "tests" / "tests.py", folder / "tests")
    environment = {"SUITE_FOLDER": str(tmp_path), "FOQS_PURE": os.environ.get("FOQS_PURE", "")}
    result = run_suite(Path(sys.executable), folder, ["tests/tests.py", "-k", " or ".join(CLASSES)], environment)
    print(f"django-tasks-db: {len(result.passed)} passed, {len(result.failed)} failed, {len(result.skipped)} skipped")

    assert result.unexpected(FAILURES) == [], result.output
    assert len(result.passed) >= PASSED_MIN
