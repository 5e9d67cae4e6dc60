"""Tests of the log of kazoo's messages."""

from __future__ import annotations

import pytest

from shardmgr.registry.zookeeper_log import KazooLog


def test_repeated_message_is_logged_once_until_the_service_is_reached(
    caplog: pytest.LogCaptureFixture,
) -> None:
    words = KazooLog()
    words.on_connected()
    for _ in range(3):
        words.logger.warning("Connection dropped: %s", "refused")
    words.logger.warning("Cannot resolve zk1")
    words.on_connected()
    assert words.last_message == ""
    words.logger.warning("Cannot resolve zk1")
    words.logger.info("Connecting to zk1")
    assert caplog.messages == [
        "ZooKeeper: Connection dropped: refused",
        "ZooKeeper: Cannot resolve zk1",
        "ZooKeeper: Cannot resolve zk1",
    ]


def test_nothing_is_logged_before_the_service_was_reached(caplog: pytest.LogCaptureFixture) -> None:
    words = KazooLog()
    words.logger.warning("Connection dropped: %s", "refused")
    assert words.last_message == "Connection dropped: refused"
    assert caplog.messages == []
