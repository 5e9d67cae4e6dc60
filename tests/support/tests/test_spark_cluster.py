"""Tests of the reading of the pages of Spark's master."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("pyspark")

from tests.support.spark_cluster import registered_workers

WORKERS = [{"host": "127.0.0.2", "state": "ALIVE"}, {"host": "127.0.0.3", "state": "DEAD"}]


@pytest.mark.parametrize("page", [b"<!DOCTYPE html><html></html>", b"", b"\xff", b'{"status": "STANDBY"}'])
def test_a_master_that_is_not_ready_has_no_workers(page: bytes) -> None:
    assert registered_workers(page) is None


def test_the_workers_that_live_are_registered() -> None:
    assert registered_workers(json.dumps({"status": "ALIVE", "workers": WORKERS}).encode()) == {"127.0.0.2"}
