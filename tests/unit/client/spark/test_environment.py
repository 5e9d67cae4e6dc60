"""Tests the check of the Python of Spark's tasks, `python -m pyspark_foqs`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from foqs_client.spark import environment

SOURCES = os.pathsep.join(sys.path)


def python(folder: Path, text: str) -> str:
    """Return a program that prints `text` like a Python."""
    program = folder / "python3"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o700)
    return str(program)


def test_this_python_has_all_packages() -> None:
    assert environment.missing_packages() == []
    assert environment.problem({"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": SOURCES}) is None


def test_problem_names_the_python_its_missing_packages_and_the_remedy(tmp_path: Path) -> None:
    other = python(tmp_path, "echo pyspark_foqs pyarrow")
    message = environment.problem({"PYSPARK_PYTHON": other})
    assert message is not None
    assert message.startswith(
        f"Spark's tasks run on {other}, which has no pyspark_foqs and no pyarrow: install foqs[spark]"
    )
    assert "set PYSPARK_PYTHON" in message


def test_default_is_the_first_python3_of_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python(tmp_path, "echo pyarrow")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for name in ("PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    assert "run on python3 (PYSPARK_PYTHON is not set), which has no pyarrow" in str(environment.problem(os.environ))


def test_problem_names_a_missing_python_and_one_that_exists(capsys: pytest.CaptureFixture[str]) -> None:
    message = environment.problem({"PYSPARK_PYTHON": "/nowhere/python3"})
    assert message is not None
    assert message.startswith("/nowhere/python3 cannot be run: set PYSPARK_PYTHON to")


def test_python_of_the_driver_comes_first_because_spark_searches_it(tmp_path: Path) -> None:
    other = python(tmp_path, "echo pyarrow")
    message = environment.problem({"PYSPARK_DRIVER_PYTHON": other, "PYSPARK_PYTHON": sys.executable})
    assert message is not None
    assert message.startswith(f"Spark's tasks run on {other}, which has no pyarrow")
    assert "or set PYSPARK_DRIVER_PYTHON to a Python that has it" in message


def test_foqs_is_from_a_session_if_nothing_else_has_it(tmp_path: Path) -> None:
    added, own = tmp_path / "a-session", tmp_path / "own"
    for folder in (added, own):
        (folder / "foqs_client").mkdir(parents=True)
        (folder / "foqs_client" / "__init__.py").touch()
    session = {"SPARK_JOB_ARTIFACT_UUID": "a-session"}
    assert environment.is_from_session(session, [str(added)])
    assert not environment.is_from_session(session, [str(added), str(own)])
    for outside in ({}, {"SPARK_JOB_ARTIFACT_UUID": "default"}):
        assert not environment.is_from_session(outside, [str(added)])
