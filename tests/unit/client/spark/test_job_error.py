"""Tests of what a user sees of an error of a job."""

from __future__ import annotations

import os
import traceback

import pytest

from foqs_client.spark.job_error import SourceError, without_traceback


def fail() -> None:
    raise SourceError("name the hosts")


def fail_because_of_another_error() -> None:
    try:
        int("the cause")
    except ValueError:
        fail()


def test_error_of_a_job_leaves_the_frames_in_which_it_was_raised_behind() -> None:
    with pytest.raises(SourceError) as raised, without_traceback():
        fail_because_of_another_error()
    shown = "".join(traceback.format_exception(raised.value))
    assert "in fail" not in shown
    assert "the cause" not in shown
    assert "SPARK_HIDE_TRACEBACK" not in os.environ, "this process was not started by Spark"


@pytest.mark.parametrize("simplified", [True, False])
def test_process_of_spark_shows_no_traceback_unless_it_is_wanted(
    monkeypatch: pytest.MonkeyPatch, simplified: bool
) -> None:
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")
    if simplified:
        monkeypatch.setenv("SPARK_SIMPLIFIED_TRACEBACK", "1")
    with pytest.raises(SourceError), without_traceback():
        fail()
    assert os.environ["SPARK_HIDE_TRACEBACK"] == ("1" if simplified else "")


def test_other_errors_keep_their_traceback() -> None:
    with pytest.raises(ValueError, match="a bug") as raised, without_traceback():
        raise ValueError("a bug")
    assert raised.traceback[-1].name == "test_other_errors_keep_their_traceback"
